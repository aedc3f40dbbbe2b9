"""Which tile a number of rows gets, and that the measured tables can be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.ops.triton import tiles
from alula.ops.triton.tiles import (
    FOLDER,
    ROWS,
    Bucket,
    Shape,
    Tile,
    choose,
    distinct,
    read,
    restricted,
    table,
)

SHARED_KB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
SMALL, MIDDLE, LARGE = (Tile(rows, 64, 64, 4, 3) for rows in (16, 32, 128))
MEASURED = (Bucket(16, SMALL), Bucket(64, MIDDLE), Bucket(256, LARGE))
TABLES = sorted(FOLDER.glob("sm_*.json"))


@pytest.mark.parametrize("outputs", [64, 576, 4096, 49152])
def test_without_a_table_rows_fill_half_of_their_tile_and_the_machine(outputs: int) -> None:
    known = table(outputs, 4096, torch.bfloat16, None, 132)
    smallest = known[0].tile
    for rows in range(1, 3000):
        tile = choose(known, rows)
        if tile != smallest:
            assert tile.rows < 2 * rows
            assert 2 * -(-rows // tile.rows) * -(-outputs // tile.outputs) >= 132
    assert choose(known, 100_000) != smallest


def test_where_a_table_exists_the_measured_tile_is_taken() -> None:
    expected = {1: SMALL, 16: SMALL, 17: MIDDLE, 64: MIDDLE, 65: LARGE, 10**6: LARGE}
    assert {rows: choose(MEASURED, rows) for rows in expected} == expected


def test_a_weight_of_another_shape_takes_the_table_of_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weight(outputs: int, inner: int, tile: Tile) -> dict[str, object]:
        shape = Shape(outputs, inner, 2)._asdict()
        return {**shape, "buckets": [Bucket(16, tile)._asdict()]}

    known = {
        "classes": {"fp32": [LARGE]},
        "weights": [weight(4096, 4096, SMALL), weight(4096, 14336, MIDDLE)],
    }
    (tmp_path / "sm_70.json").write_text(json.dumps(known))
    (tmp_path / "default.json").write_text((FOLDER / "default.json").read_text())
    monkeypatch.setattr(tiles, "FOLDER", tmp_path)

    def tile(outputs: int, inner: int, dtype: torch.dtype = torch.float16) -> Tile:
        return choose(table(outputs, inner, dtype, (7, 0), 80), 1)

    assert tile(4096, 4096) == tile(6000, 4000) == tile(576, 576) == SMALL
    assert tile(4096, 14336) == tile(4096, 12288) == MIDDLE
    assert tile(4096, 4096, torch.float32) == LARGE


def test_an_unknown_architecture_takes_the_defaults() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        known = table(4096, 4096, dtype, (31, 7), 132)
        assert known == table(4096, 4096, dtype, None, 132)


@given(st.sets(st.sampled_from([SMALL, MIDDLE, LARGE])))
def test_a_tile_that_is_not_allowed_gives_way_to_the_one_before(allowed: set[Tile]) -> None:
    kept = restricted(MEASURED, allowed)
    assert [bucket.rows for bucket in kept] == [16, 64, 256]
    assert set(distinct(kept)) <= allowed | {SMALL}
    for before, after in zip(MEASURED, kept, strict=True):
        if before.tile in allowed:
            assert after == before


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_whose_tiles_all_agree_stays_as_it_is(path: Path) -> None:
    for measured in read(path).measured.values():
        assert restricted(measured, set(distinct(measured)[1:])) == measured


def test_steps_divide_the_inner_size_where_they_can() -> None:
    tile = Tile(16, 32, 256, 4, 3)
    assert [tile.fitted(inner).inner for inner in (4096, 1536, 576, 1008)] == [256, 256, 64, 64]
    assert Tile(16, 32, 32, 4, 3).fitted(1008).inner == 32


def test_whole_steps_are_fetched_ahead_and_a_pipeline_has_what_is_left() -> None:
    tile = Tile(16, 32, 64, 4, 1, 9)
    assert tile.fitted(576) == tile
    assert tile.fitted(512) == tile._replace(ahead=8)
    assert tile.fitted(640) == tile._replace(stages=3)
    assert tile.fitted(1008) == tile._replace(stages=3, ahead=0)


@pytest.mark.parametrize("outputs", [1, 384, 4096, 128256])
def test_a_part_of_a_weight_is_added_up_as_the_whole(outputs: int) -> None:
    """A drafter multiplies by keys and values alone where it needs no queries."""
    steps = [Shape(outputs, inner, 2).step for inner in (576, 2047, 2048, 14336)]
    assert steps == [64, 64, None, None]


def test_short_rows_are_added_up_in_steps_of_one_size_whatever_the_tile() -> None:
    small = Shape(4096, 1024, 2)
    assert (small.step, Shape(1024, 1024, 4).step) == (64, None)
    for tile in (Tile(16, 32, 256, 4, 4), Tile(64, 64, 64, 4, 8), Tile(16, 16, 32, 4, 3)):
        assert tile.fitted(1024, small.step).inner == 64
        assert tile.fitted(1000, small.step).inner == 64
    # The sums of a step take registers beside the others.
    assert Tile(128, 128, 64, 4, 4).fitted(1024, 64) == Tile(128, 128, 64, 8, 4)
    assert Tile(128, 256, 64, 8, 4).fitted(1024, 64) == Tile(128, 128, 64, 8, 4)
    # As many bytes are on their way as its own steps would have been, up to eight of the pipeline.
    assert Tile(16, 32, 128, 4, 3, 2).fitted(1024, 64) == Tile(16, 32, 64, 4, 6, 4)
    assert Tile(16, 32, 512, 4, 3, 1, 1).fitted(1024, 64) == Tile(16, 32, 64, 4, 8, 8, 1)


def test_default_tiles_fit_the_smallest_shared_memory() -> None:
    for kind, known in read(FOLDER / "default.json").classes.items():
        for tile in known:
            assert tile.shared_bytes(4 if kind == "fp32" else 2) <= 99 * 1024


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_tables_in_the_package_fit_their_architecture(path: Path) -> None:
    room = SHARED_KB[int(path.stem.removeprefix("sm_"))] * 1024
    known = read(path)
    for known_tiles in known.classes.values():
        assert all(tile.shared_bytes(2) <= room for tile in known_tiles)
    for shape, measured in known.measured.items():
        rows = [bucket.rows for bucket in measured]
        assert rows == sorted(rows) and rows[-1] >= ROWS[-1]
        for tile in distinct(measured):
            assert tile.fitted(shape.inner, shape.step).shared_bytes(shape.itemsize) <= room
