"""Measures which tile is fastest for a weight by number of rows, and writes the table.

Tiles whose sums are not bit for bit those of the shape's reference are not measured at all. Where
two are as good as equal the one that the bucket before uses is kept, so that fewer are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from alula.bench.timing import Clock, race
from alula.errors import ModelError
from alula.ops.triton.tiles import ROWS, Shape, Tile

_TIE = 1.01
_SMALL = (
    Tile(16, 32, 256, 4, 3),
    Tile(16, 32, 256, 4, 4),
    Tile(16, 64, 128, 4, 4),
    Tile(16, 64, 128, 4, 5),
    Tile(16, 64, 256, 4, 3),
    Tile(16, 32, 128, 4, 5),
    Tile(16, 16, 256, 4, 4),
    Tile(16, 32, 64, 4, 9),
    Tile(16, 32, 256, 4, 5),
)
_THIRTY_TWO = (
    Tile(32, 32, 256, 4, 3),
    Tile(32, 32, 256, 4, 4),
    Tile(32, 32, 128, 4, 5),
    Tile(32, 64, 128, 4, 4),
    Tile(32, 64, 256, 4, 3),
)
_SIXTY_FOUR = (
    Tile(64, 32, 128, 4, 4),
    Tile(64, 32, 256, 4, 3),
    Tile(64, 64, 128, 4, 3),
    Tile(64, 64, 128, 4, 4),
    Tile(64, 64, 64, 4, 5),
)
_DEEP = (
    Tile(64, 32, 64, 4, 12),
    Tile(64, 32, 128, 4, 6),
    Tile(64, 64, 64, 4, 8),
    Tile(64, 128, 64, 4, 4),
)
_MIDDLE = (
    Tile(64, 128, 64, 4, 4),
    Tile(64, 128, 128, 4, 3),
    Tile(128, 64, 64, 4, 4),
    Tile(128, 64, 128, 4, 3),
    Tile(128, 128, 64, 4, 4),
    Tile(128, 128, 64, 8, 4),
)
_LARGE = (
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 128, 8, 3),
    Tile(128, 256, 64, 8, 3),
    Tile(128, 256, 64, 8, 4),
    Tile(256, 128, 64, 8, 3),
    Tile(256, 128, 64, 8, 4),
)
_CANDIDATES = {
    4: _SMALL,
    16: _SMALL,
    32: _THIRTY_TWO + _SMALL[:3],
    48: _DEEP + _SIXTY_FOUR[:4] + _THIRTY_TWO[1:3] + _SMALL[-2:-1],
    64: _DEEP + _SIXTY_FOUR[2:] + _THIRTY_TWO[2:] + _SMALL[-2:-1],
    128: _SIXTY_FOUR[2:] + _MIDDLE,
    256: _SIXTY_FOUR[3:] + _MIDDLE + _LARGE[:1],
}
"""By the rows up to which a bucket reaches; for larger ones the middle and large ones."""


class Trial(NamedTuple):
    """A tile's time at a number of rows."""

    tile: Tile
    us: float
    turns: int


class Chosen(NamedTuple):
    """What a bucket came to."""

    rows: int
    best: Trial
    cublas_us: float
    share: float
    """Of the memory limit: bytes of the weight by the time, against a sum."""
    trials: list[Trial]


class Bench(Protocol):
    """One weight on a device, many times over, past the cache."""

    shape: Shape

    def compile(self, plan: dict[int, list[Tile]]) -> None:
        """Compile what will be timed: tiles by rows."""

    def agreeing(self, tiles: Sequence[Tile]) -> set[Tile]:
        """Those whose sums are the reference's, among those that fit the device."""

    def clock(self, tile: Tile, rows: int) -> Clock:
        """A clock of one multiplication in a tile."""

    def cublas(self, rows: int) -> Clock:
        """A clock of one by cuBLAS."""


def candidates(shape: Shape, rows: int, shared_bytes: int) -> list[Tile]:
    """The tiles to try in the bucket that ends at `rows`, each in the steps it would really take.

    `shared_bytes`: what the architecture has for a program.
    """
    tiles = _CANDIDATES.get(rows, _MIDDLE[1:] + _LARGE)
    fitted = dict.fromkeys(tile.fitted(shape.inner, shape.step) for tile in tiles)
    return [tile for tile in fitted if tile.shared_bytes(shape.itemsize) <= shared_bytes]


def tune(
    bench: Bench, shared_bytes: int, bandwidth: float, buckets: Sequence[int] = ROWS
) -> Iterator[Chosen]:
    """The best tile of every bucket, timed at the most rows of it.

    `bandwidth`: terabytes a second. Raises ModelError where no tile agrees with the reference.
    """
    plan = {rows: candidates(bench.shape, rows, shared_bytes) for rows in buckets}
    bench.compile(plan)
    allowed = bench.agreeing(list(dict.fromkeys(chain(*plan.values()))))
    before: Tile | None = None
    for rows, all_tiles in plan.items():
        tiles = [tile for tile in all_tiles if tile in allowed]
        if not tiles:
            raise _none_agrees(bench.shape, rows)
        chosen = _raced(bench, rows, tiles, before, bandwidth)
        before = chosen.best.tile
        yield chosen


def _raced(
    bench: Bench, rows: int, tiles: Sequence[Tile], before: Tile | None, bandwidth: float
) -> Chosen:
    clocks: dict[Tile | None, Clock] = {tile: bench.clock(tile, rows) for tile in tiles}
    found = race(clocks)
    trials = sorted(
        (Trial(tile, found[tile].median, found[tile].turns) for tile in tiles),
        key=lambda trial: trial.us,
    )
    best = next((t for t in trials if t.tile == before and t.us <= _TIE * trials[0].us), trials[0])
    cublas = race({None: bench.cublas(rows)})[None].median
    size = bench.shape.outputs * bench.shape.inner * bench.shape.itemsize
    return Chosen(rows, best, cublas, size / best.us / 1e6 / bandwidth, trials)


def written(path: Path, base: Path, measured: dict[Shape, list[Chosen]]) -> dict[str, Any]:
    """The content of an architecture's file: what `path`, or else `base`, says and has not been
    measured now, and what has.
    """
    known = next((p for p in (path, base) if p.is_file()), None)
    content = json.loads(known.read_text("utf-8")) if known else {"classes": {}, "weights": []}
    names = Shape._fields
    kept = [w for w in content["weights"] if Shape(*(w[n] for n in names)) not in measured]
    new = [
        {**shape._asdict(), "buckets": [_entry(each) for each in chosen]}
        for shape, chosen in measured.items()
    ]
    weights = sorted(kept + new, key=lambda w: tuple(w[n] for n in names))
    return {**content, "weights": weights}


def as_text(content: dict[str, Any]) -> str:
    """An architecture's file with a line for every bucket, for people who compare two of them."""
    weights = [
        f"{json.dumps({name: weight[name] for name in Shape._fields})[:-1]}, "
        '"buckets": [\n      '
        + ",\n      ".join(json.dumps(bucket) for bucket in weight["buckets"])
        + "]}"
        for weight in content["weights"]
    ]
    others = {name: value for name, value in content.items() if name != "weights"}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in others.items()]
    lines.append('  "weights": [\n    ' + ",\n    ".join(weights) + "]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(chosen: Chosen) -> dict[str, Any]:
    return {
        "rows": chosen.rows,
        "tile": list(chosen.best.tile),
        "us": round(chosen.best.us, 2),
        "cublas_us": round(chosen.cublas_us, 2),
    }


def _none_agrees(shape: Shape, rows: int) -> ModelError:
    return ModelError(
        f"no tile can be used for a weight of {shape.outputs} × {shape.inner} at {rows} rows",
        "none of those tried adds in the order of the shape's reference and fits the device",
        "keep the table as it is, and report the device and its driver",
    )
