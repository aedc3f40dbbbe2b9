"""The tiles a linear is computed in: a small one for rounds up to a large one for prefill.

All tiles of a weight add its products in the same order, along the inner dimension, so that the
choice among them may follow the number of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """What one program computes at a time, and with how many warps and pipeline stages."""

    rows: int
    outputs: int
    inner: int
    warps: int
    stages: int

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory that its pipeline takes."""
        return (self.rows + self.outputs) * self.inner * itemsize * self.stages


Tiles = tuple[Tile, ...]

_WIDE_OUTPUTS = 8192
_DEFAULT: dict[str, Tiles] = {
    "narrow": (
        Tile(16, 32, 128, warps=4, stages=4),
        Tile(32, 32, 128, warps=4, stages=3),
        Tile(64, 64, 64, warps=4, stages=4),
        Tile(128, 128, 64, warps=8, stages=3),
    ),
    "wide": (
        Tile(16, 64, 128, warps=4, stages=4),
        Tile(32, 64, 128, warps=4, stages=3),
        Tile(64, 128, 64, warps=4, stages=4),
        Tile(128, 128, 64, warps=8, stages=3),
    ),
    "fp32": (Tile(16, 32, 32, warps=4, stages=3), Tile(64, 64, 32, warps=8, stages=3)),
}
_BY_ARCHITECTURE: dict[tuple[int, int], dict[str, Tiles]] = {
    (9, 0): {
        "narrow": (
            Tile(16, 32, 256, warps=4, stages=4),
            *_DEFAULT["narrow"][1:3],
            Tile(128, 128, 64, warps=8, stages=4),
        ),
        "wide": (
            *_DEFAULT["wide"][:3],
            Tile(128, 256, 64, warps=8, stages=4),
        ),
    }
}
"""Measured ones; an architecture that is not here takes the defaults, which fit all."""


def shape_class(outputs: int, dtype: torch.dtype) -> str:
    """Which tiles suit a weight [outputs, …]."""
    if dtype.itemsize == 4:
        return "fp32"
    return "wide" if outputs >= _WIDE_OUTPUTS else "narrow"


def tiles(outputs: int, dtype: torch.dtype, capability: tuple[int, int] | None) -> Tiles:
    """From the smallest to the largest, for an architecture or for any (None)."""
    known = _BY_ARCHITECTURE.get(capability, {}) if capability else {}
    kind = shape_class(outputs, dtype)
    return known.get(kind, _DEFAULT[kind])


def choose(tiles: Tiles, rows: int, outputs: int, processors: int) -> Tile:
    """The largest tile that is half filled and keeps half of the processors busy."""
    for tile in reversed(tiles):
        programs = -(-rows // tile.rows) * -(-outputs // tile.outputs)
        if tile.rows < 2 * rows and 2 * programs >= processors:
            return tile
    return tiles[0]
