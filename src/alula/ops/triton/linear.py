"""A linear layer whose sums run in one order at any number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.linear import DenseWeight, Weight
from alula.ops.norm import Normed
from alula.ops.triton.launch import ceil_div, options
from alula.ops.triton.product import (
    begin,
    complete,
    divisor,
    end,
    fetch,
    multiply,
    place,
    releases,
    squares_of,
    start,
)
from alula.ops.triton.tiles import (
    Capability,
    Shape,
    Table,
    Tile,
    choose,
    distinct,
    restricted,
    table,
)

_ROW_TILES_PER_GROUP = 8
_KEPT_TILINGS = 64
_FEW_ROWS = 256
"""Up to here rows beyond the edge are masked, not read again."""


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x,
    weight,
    bias,
    squares,
    y,
    rows,
    outputs,
    inner,
    x_stride,
    eps,
    block_rows: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inner: tl.constexpr,
    group: tl.constexpr,
    has_bias: tl.constexpr,
    has_squares: tl.constexpr,
    is_even: tl.constexpr,
    masks_rows: tl.constexpr,
    by_steps: tl.constexpr,
    ahead: tl.constexpr,
    has_more: tl.constexpr,
    releases: tl.constexpr,
    overlaps: tl.constexpr,
):
    """A program computes one tile of y [rows, outputs]."""
    start(releases, overlaps)
    row, lane = place(rows, outputs, block_rows, block_outputs, group)
    output = tl.minimum(lane, outputs - 1)
    fetched = fetch(weight, output, inner, block_inner, ahead)
    begin(releases, overlaps)
    total = squares_of(squares, row, rows, has_squares)
    sums = multiply(
        *(x, weight, fetched, row, output, rows, inner, x_stride),
        *(block_inner, is_even, masks_rows, by_steps, ahead, has_more),
    )
    end(releases, overlaps)
    scale = divisor(total, inner, eps, has_squares)
    sums = complete(sums, scale, bias, output, has_bias)
    to = y + row.to(tl.int64)[:, None] * outputs + lane[None, :]
    inside = (row < rows)[:, None] & (lane < outputs)[None, :]
    tl.store(to, sums.to(y.dtype.element_ty), mask=inside)


class Tiling(NamedTuple):
    """How a weight's kernels are launched for a number of rows."""

    programs: int
    constants: dict[str, Any]


class TiledWeight(Weight):
    """A matrix as torch holds it, multiplied by `linear_kernel`."""

    layout = "tiled"
    probed_rows = (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 128, 129, 257)

    def __init__(self, weight: DenseWeight, table: Table) -> None:
        self.shape = weight.shape
        self.dtype = weight.dtype
        self.device = weight.device
        self.table = table
        self.values = weight.values.contiguous()
        self.bias = weight.bias
        self._step = Shape(*self.shape, self.dtype.itemsize).step
        self._tilings: dict[tuple[int, Tile | None], Tiling] = {}

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply`; x has contiguous rows."""
        return self.multiply_normed(Normed(x), dtype)

    def multiply_in_any_order(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply_in_any_order`: by cuBLAS."""
        return DenseWeight(self.values, self.bias).multiply(x, dtype)

    def multiply_in(self, tile: Tile, x: Tensor, dtype: torch.dtype) -> Tensor:
        """As `multiply`, in a given tile."""
        return self._multiply(tile, Normed(x), dtype)

    def multiply_normed(self, x: Normed, dtype: torch.dtype) -> Tensor:
        """As `multiply`, and divide what is still to be divided."""
        return self._multiply(None, x, dtype)

    def compile(self, tile: Tile, rows: int, dtype: torch.dtype) -> None:
        """Compile what `multiply_in` launches for so many rows, and launch nothing."""
        x, y = (
            torch.empty(rows, size, dtype=of, device="meta")
            for size, of in ((self.shape[1], self.dtype), (self.shape[0], dtype))
        )
        tiling = self.tiling(rows, tile)
        linear_kernel.warmup(
            *self._arguments(Normed(x), y),
            grid=(tiling.programs,),
            has_squares=False,
            **tiling.constants,
        )

    def variant(self, tile: Tile, rows: int) -> tuple[Tile, bool]:
        """What is compiled for a tile at a number of rows: its real steps, and whether it masks
        rows beyond the edge.
        """
        return tile.fitted(self.shape[1], self._step), rows <= _FEW_ROWS and rows % tile.rows != 0

    def tiling(self, rows: int, tile: Tile | None = None) -> Tiling:
        """How to launch for so many rows, in the tile of its table or a given one."""
        # It is asked for before every launch, mostly for the same few numbers of rows.
        known = self._tilings.get((rows, tile))
        if known is None:
            if len(self._tilings) >= _KEPT_TILINGS:
                self._tilings.clear()
            known = self._tilings[rows, tile] = self._new_tiling(rows, tile)
        return known

    def _new_tiling(self, rows: int, tile: Tile | None) -> Tiling:
        tile, masks_rows = self.variant(tile or choose(self.table, rows), rows)
        programs = ceil_div(rows, tile.rows) * ceil_div(self.shape[0], tile.outputs)
        return Tiling(programs, self._constants(tile, masks_rows))

    def _constants(self, tile: Tile, masks_rows: bool) -> dict[str, Any]:
        return {
            "block_rows": tile.rows,
            "block_outputs": tile.outputs,
            "block_inner": tile.inner,
            "group": _ROW_TILES_PER_GROUP,
            "has_bias": self.bias is not None,
            "is_even": self.shape[1] % tile.inner == 0,
            "masks_rows": masks_rows,
            "by_steps": self._step is not None,
            "ahead": tile.ahead,
            "has_more": tile.ahead * tile.inner < self.shape[1],
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            "releases": releases(self.values, tile),
            **options(self.values),
        }

    def _multiply(self, tile: Tile | None, x: Normed, dtype: torch.dtype) -> Tensor:
        rows = x.values.shape[0]
        y = torch.empty(rows, self.shape[0], dtype=dtype, device=x.values.device)
        tiling = self.tiling(rows, tile)
        linear_kernel[(tiling.programs,)](
            *self._arguments(x, y), has_squares=x.squares is not None, **tiling.constants
        )
        return y

    def _arguments(self, x: Normed, y: Tensor) -> tuple[Any, ...]:
        rows, (outputs, inner) = len(x.values), self.shape
        return (
            *(x.values, self.values, self.bias, x.squares, y),
            *(rows, outputs, inner, x.values.stride(0), x.eps),
        )


def lay_out(weight: DenseWeight) -> TiledWeight:
    """The weight for `linear_kernel`, with those tiles that agree about its sums."""
    processors, capability = machine(weight.device)
    known = table(*weight.shape, weight.dtype, capability, processors)
    return TiledWeight(weight, restricted(known, agreeing(TiledWeight(weight, known))))


def agreeing(weight: TiledWeight, tiles: Sequence[Tile] | None = None) -> set[Tile]:
    """Those of `tiles`, its table's if None, whose sums are bit for bit those of the table's first.

    They may be computed with different instructions of the matrix units, so they are tried on
    this device.
    """
    reference, *others = distinct(weight.table)
    tiles = others if tiles is None else tiles
    generator = torch.Generator(weight.device).manual_seed(0)
    most = max(tile.rows for tile in (reference, *tiles))
    size = (most + 1, weight.shape[1])
    x = torch.randn(size, generator=generator, device=weight.device).to(weight.dtype)
    expected = weight.multiply_in(reference, x, torch.float32)
    return {
        tile for tile in tiles if torch.equal(weight.multiply_in(tile, x, torch.float32), expected)
    }


def machine(device: torch.device) -> tuple[int, Capability | None]:
    """Multiprocessors and compute capability."""
    if device.type != "cuda":  # Triton's interpreter
        return 1, None
    return (
        torch.cuda.get_device_properties(device).multi_processor_count,
        torch.cuda.get_device_capability(device),
    )
