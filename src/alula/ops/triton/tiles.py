"""The tiles a linear is computed in, by rows: small ones for rounds up to large ones for prefill.

All tiles of a weight add its products in the same order, along the inner dimension, so that the
choice among them may follow the number of rows. `alula bench kernels --tune` measures which is
fastest for a weight's shape and writes it into the architecture's file in `tile_tables`; where
nothing is measured a rule of thumb picks from the few tiles of a class of shapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Tile(NamedTuple):
    """What one program computes at a time, and with how many warps and pipeline stages."""

    rows: int
    outputs: int
    inner: int
    warps: int
    stages: int
    ahead: int = 0
    """Steps of the weight that it fetches before it waits for its input."""
    release: int = 0
    """When it lets the next kernel begin: 0 when the rule says (`product.releases`), 1 once it has
    its input, 2 when its sums are made."""

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory that its pipeline and what is fetched ahead take at most."""
        steps = self.stages + self.ahead
        return (self.rows + self.outputs) * self.inner * itemsize * steps

    def fitted(self, inner: int, step: int | None = None) -> Tile:
        """As it is used for rows of a weight of `inner` elements that are added up in steps of one
        size, if `step` says so: with steps that divide `inner` where steps of 64 or more can; one
        stage may hold all.

        Only whole steps are fetched ahead; what is left of them needs a pipeline.
        """
        if step is not None:
            return self.in_steps(step).fitted(inner)
        step = self.inner
        if self.stages > 1 or step < inner:
            while inner % step and step > _SMALLEST_INNER:
                step //= 2
        ahead = 0 if inner % step else min(self.ahead, inner // step)
        is_left = self.ahead > 0 and ahead * step < inner
        stages = max(self.stages, _LEAST_STAGES) if is_left else self.stages
        return self._replace(inner=step, stages=stages, ahead=ahead)

    def in_steps(self, step: int) -> Tile:
        """With this step, as many bytes under way, and registers for the sums of a step beside the
        others.
        """
        more = max(self.inner // step, 1)
        stages = min(self.stages * more, max(self.stages, _MOST_STAGES))
        tile = self._replace(inner=step, ahead=self.ahead * more, stages=stages)
        while tile.rows * tile.outputs > _MOST_SUMS * tile.warps:
            if tile.warps < _MOST_WARPS:
                tile = tile._replace(warps=2 * tile.warps)
            else:
                tile = tile._replace(outputs=tile.outputs // 2)
        return tile


class Bucket(NamedTuple):
    """Up to so many rows a tile is for."""

    rows: int
    tile: Tile


Table = tuple[Bucket, ...]
"""By ascending rows; the last tile is for all above as well."""

Tiles = tuple[Tile, ...]
Capability = tuple[int, int]

ROWS = (4, 16, 32, 48, 64, 128, 256, 512, 1024, 2048)
"""Where buckets end. Plain steps and short chains of one sequence have one of their own, and so has
a tree of 32 nodes and its root."""

FOLDER = Path(__file__).with_name("tile_tables")
_ANY_ARCHITECTURE = "default.json"
_SMALLEST_INNER, _LEAST_STAGES, _MOST_STAGES = 64, 3, 8
_MOST_SUMS, _MOST_WARPS = 2048, 8
"""Sums of a warp, where each takes registers twice, and warps of a program."""
_WIDE_OUTPUTS = 8192
_SMALL_BYTES = 1 << 23
_LONG_ROW, _STEP = 2048, 64


class Shape(NamedTuple):
    """What a weight's best tiles depend on."""

    outputs: int
    inner: int
    itemsize: int

    @property
    def kind(self) -> str:
        """Its class, for where it is not measured."""
        if self.itemsize == 4:
            return "fp32"
        return "wide" if self.outputs >= _WIDE_OUTPUTS else "narrow"

    @property
    def is_small(self) -> bool:
        """Whether time goes into waiting for it, and not into reading it."""
        return self.outputs * self.inner * self.itemsize <= _SMALL_BYTES

    @property
    def step(self) -> int | None:
        """How many products are a sum of their own; None where all are one (see `product`). It
        follows from a row alone: a part of a weight's rows is multiplied as the whole is.
        """
        return _STEP if self.inner < _LONG_ROW and self.itemsize < 4 else None


class Architecture(NamedTuple):
    """What the file of an architecture says."""

    classes: dict[str, Tiles]
    measured: dict[Shape, Table]

    def nearest(self, shape: Shape) -> Table | None:
        """The table of the measured shape that is most like this one."""
        alike = [known for known in self.measured if known.itemsize == shape.itemsize]
        if not alike:
            return None
        return self.measured[min(alike, key=lambda known: _distance(known, shape))]


def file_name(capability: Capability) -> str:
    """What an architecture's file is called."""
    return f"sm_{capability[0]}{capability[1]}.json"


@cache
def read(path: Path) -> Architecture:
    """An architecture's file; empty where there is none."""
    if not path.is_file():
        return Architecture({}, {})
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    classes = {kind: tuple(Tile(*tile) for tile in of) for kind, of in content["classes"].items()}
    measured = {
        Shape(*(weight[key] for key in Shape._fields)): tuple(
            Bucket(bucket["rows"], Tile(*bucket["tile"])) for bucket in weight["buckets"]
        )
        for weight in content["weights"]
    }
    return Architecture(classes, measured)


def table(
    outputs: int, inner: int, dtype: torch.dtype, capability: Capability | None, processors: int
) -> Table:
    """The tiles of a weight [outputs, inner] on an architecture, or on any (None)."""
    shape = Shape(outputs, inner, dtype.itemsize)
    known = read(FOLDER / file_name(capability)) if capability else Architecture({}, {})
    found = known.nearest(shape)
    if found is not None:
        return found
    of_any = read(FOLDER / _ANY_ARCHITECTURE).classes
    return by_rule(known.classes.get(shape.kind, of_any[shape.kind]), outputs, processors)


def by_rule(tiles: Tiles, outputs: int, processors: int) -> Table:
    """For every bucket the largest tile that is half filled and keeps half of the processors busy
    at the fewest rows of the bucket.
    """

    def suits(tile: Tile, rows: int) -> bool:
        programs = -(-rows // tile.rows) * -(-outputs // tile.outputs)
        return tile.rows < 2 * rows and 2 * programs >= processors

    fewest = (1, *(rows + 1 for rows in ROWS))
    suiting = [[tile for tile in tiles if suits(tile, rows)] for rows in fewest]
    return tuple(
        Bucket(rows, [tiles[0], *those][-1])
        for rows, those in zip((*ROWS, 2 * ROWS[-1]), suiting, strict=True)
    )


def choose(table: Table, rows: int) -> Tile:
    """The tile for a number of rows."""
    return next((bucket.tile for bucket in table if rows <= bucket.rows), table[-1].tile)


def distinct(table: Table) -> Tiles:
    """The tiles of a table, each once, the one for the fewest rows first."""
    return tuple(dict.fromkeys(bucket.tile for bucket in table))


def restricted(table: Table, allowed: Collection[Tile]) -> Table:
    """The table with no tiles but the first and `allowed` ones: for others, the one before."""
    kept: list[Bucket] = []
    for bucket in table:
        usable = bucket.tile == table[0].tile or bucket.tile in allowed
        kept.append(bucket if usable else Bucket(bucket.rows, kept[-1].tile))
    return tuple(kept)


def _distance(one: Shape, other: Shape) -> float:
    return abs(math.log2(one.outputs / other.outputs)) + abs(math.log2(one.inner / other.inner))
