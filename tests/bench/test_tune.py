"""The tuner takes the fastest of the tiles that keep the order of the sums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("triton")

from alula.bench.timing import Clock
from alula.bench.tune import Chosen, as_text, candidates, tune, written
from alula.errors import ModelError
from alula.ops.triton.tiles import ROWS, Shape, Tile, read

SHAPE = Shape(4096, 4096, 2)
ROOM = 227 * 1024


class FakeBench:
    """Tiles cost what `cost` says; those in `wrong` add in another order."""

    def __init__(self, wrong: set[Tile] | None = None, best: Tile | None = None) -> None:
        self.shape = SHAPE
        self.wrong = wrong or set()
        self.best = best
        self.timed: set[Tile] = set()
        self.compiled: dict[int, list[Tile]] = {}

    def compile(self, plan: dict[int, list[Tile]]) -> None:
        self.compiled = plan

    def agreeing(self, tiles: Sequence[Tile]) -> set[Tile]:
        return set(tiles) - self.wrong

    def clock(self, tile: Tile, rows: int) -> Clock:
        self.timed.add(tile)
        assert tile in self.compiled[rows]
        return lambda: 10.0 if tile == self.best else 10.05 + tile.inner / 1000

    def cublas(self, rows: int) -> Clock:
        return lambda: 12.0 + 0 * rows


@pytest.mark.parametrize("room", [99 * 1024, ROOM])
@pytest.mark.parametrize("inner", [4096, 576])
def test_every_bucket_has_candidates_that_fit(room: int, inner: int) -> None:
    for rows in ROWS:
        tiles = candidates(SHAPE._replace(inner=inner), rows, room)
        assert 2 <= len(tiles) <= 12
        assert len(set(tiles)) == len(tiles)
        for tile in tiles:
            assert tile.shared_bytes(2) <= room
            assert tile.rows < 2 * max(rows, 16)
            assert inner % tile.inner == 0


def test_the_fastest_tile_is_chosen() -> None:
    best = candidates(SHAPE, 16, ROOM)[3]
    for chosen in tune(FakeBench(best=best), ROOM, bandwidth=4.0):
        tried = [trial.tile for trial in chosen.trials]
        if best in tried:
            assert chosen.trials[0].tile == best
        assert chosen.best.us <= 1.01 * chosen.trials[0].us
        assert chosen.cublas_us == 12.0
        assert chosen.share == pytest.approx(2 * 4096**2 / chosen.best.us / 1e6 / 4.0)


def test_a_tile_as_good_as_the_best_is_kept_from_the_bucket_before() -> None:
    first, second = list(tune(FakeBench(), ROOM, 4.0, (4, 16)))
    assert first.best.tile == second.best.tile


def test_a_tile_that_adds_in_another_order_is_never_timed() -> None:
    wrong = set(candidates(SHAPE, 4, ROOM)[:3])
    bench = FakeBench(wrong)
    list(tune(bench, ROOM, 4.0))
    assert bench.timed and not bench.timed & wrong


def test_no_tile_at_all_is_an_error() -> None:
    wrong = {tile for rows in ROWS for tile in candidates(SHAPE, rows, ROOM)}
    with pytest.raises(ModelError, match="4096 × 4096 at 4 rows"):
        list(tune(FakeBench(wrong), ROOM, 4.0))


def test_what_was_measured_before_is_kept_and_what_is_measured_again_replaced(
    tmp_path: Path,
) -> None:
    def save(shape: Shape, out: Path, base: Path) -> list[Chosen]:
        chosen = list(tune(FakeBench(), ROOM, 4.0))
        content = written(out, base, {shape: chosen})
        out.write_text(as_text(content))
        assert json.loads(out.read_text()) == content
        return chosen

    base, out = tmp_path / "base.json", tmp_path / "sm_90.json"
    base.write_text(json.dumps({"classes": {"narrow": [[16, 32, 64, 4, 3]]}, "weights": []}))
    for shape in (SHAPE, SHAPE._replace(outputs=64), SHAPE):
        chosen = save(shape, out, base)
    known = read(out)
    assert known.classes == {"narrow": (Tile(16, 32, 64, 4, 3),)}
    assert set(known.measured) == {SHAPE, SHAPE._replace(outputs=64)}
    buckets = known.measured[SHAPE]
    assert [(b.rows, b.tile) for b in buckets] == [(c.rows, c.best.tile) for c in chosen]
    assert all(a.rows < b.rows for a, b in pairwise(buckets))
