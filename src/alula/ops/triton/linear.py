"""A linear layer whose sums run in one order at any number of rows: no split of the inner
dimension, every product added in turn to one fp32 accumulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.linear import DenseWeight, Weight
from alula.ops.triton.tiles import (
    Capability,
    Table,
    Tile,
    choose,
    distinct,
    restricted,
    table,
)

_ROW_TILES_PER_GROUP = 8
_FEW_ROWS = 256
"""Up to here rows beyond the edge are masked, not read again."""


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x,
    weight,
    bias,
    y,
    rows,
    outputs,
    inner,
    x_stride,
    block_rows: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inner: tl.constexpr,
    group: tl.constexpr,
    has_bias: tl.constexpr,
    is_even: tl.constexpr,
    masks_rows: tl.constexpr,
):
    """A program computes one tile of y [rows, outputs].

    Programs run through groups of `group` row tiles, output tile by output tile, so that those
    that run at a time share what they read.
    """
    program = tl.program_id(0)
    row_tiles = tl.cdiv(rows, block_rows)
    output_tiles = tl.cdiv(outputs, block_outputs)
    first_tile = program // (group * output_tiles) * group
    group_rows = tl.minimum(row_tiles - first_tile, group)
    place = program % (group * output_tiles)
    row = (first_tile + place % group_rows) * block_rows + tl.arange(0, block_rows)
    output = place // group_rows * block_outputs + tl.arange(0, block_outputs)

    # What is computed beyond the edge is never stored. Among many rows it is cheaper to read the
    # last one again than to mask; of a few, all processors would read the same bytes at a time.
    at = tl.arange(0, block_inner)
    from_x = x + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * x_stride + at[None, :]
    from_weight = weight + tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * inner
    from_weight += at[None, :]
    exists = (row < rows)[:, None]
    sums = tl.zeros((block_rows, block_outputs), dtype=tl.float32)
    for start in range(0, inner, block_inner):
        inside = (start + at < inner)[None, :]
        if is_even and masks_rows:
            a = tl.load(from_x + start, mask=exists, other=0.0)
        elif is_even:
            a = tl.load(from_x + start)
        elif masks_rows:
            a = tl.load(from_x + start, mask=exists & inside, other=0.0)
        else:
            a = tl.load(from_x + start, mask=inside, other=0.0)
        if is_even:
            b = tl.load(from_weight + start)
        else:
            b = tl.load(from_weight + start, mask=inside, other=0.0)
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
    if has_bias:
        sums += tl.load(bias + tl.minimum(output, outputs - 1)).to(tl.float32)[None, :]
    to = y + row.to(tl.int64)[:, None] * outputs + output[None, :]
    inside = (row < rows)[:, None] & (output < outputs)[None, :]
    tl.store(to, sums.to(y.dtype.element_ty), mask=inside)


class _Launch(NamedTuple):
    """What the kernel is launched with."""

    programs: int
    arguments: tuple[Any, ...]
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
        self._values = weight.values.contiguous()
        self._bias = weight.bias

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply`; x has contiguous rows."""
        return self.multiply_in(choose(self.table, x.shape[0]), x, dtype)

    def multiply_in_any_order(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply_in_any_order`: by cuBLAS."""
        return DenseWeight(self._values, self._bias).multiply(x, dtype)

    def multiply_in(self, tile: Tile, x: Tensor, dtype: torch.dtype) -> Tensor:
        """As `multiply`, in a given tile."""
        y = torch.empty(x.shape[0], self.shape[0], dtype=dtype, device=x.device)
        launch = self._launch(tile, x, y)
        linear_kernel[(launch.programs,)](*launch.arguments, **launch.constants)
        return y

    def compile(self, tile: Tile, rows: int, dtype: torch.dtype) -> None:
        """Compile what `multiply_in` launches for so many rows, and launch nothing."""
        x, y = (
            torch.empty(rows, size, dtype=of, device="meta")
            for size, of in ((self.shape[1], self.dtype), (self.shape[0], dtype))
        )
        launch = self._launch(tile, x, y)
        linear_kernel.warmup(*launch.arguments, grid=(launch.programs,), **launch.constants)

    def variant(self, tile: Tile, rows: int) -> tuple[Tile, bool]:
        """What is compiled for a tile at a number of rows: its real steps, and whether it masks
        rows beyond the edge.
        """
        return tile.fitted(self.shape[1]), rows <= _FEW_ROWS and rows % tile.rows != 0

    def _launch(self, tile: Tile, x: Tensor, y: Tensor) -> _Launch:
        rows, (outputs, inner) = x.shape[0], self.shape
        tile, masks_rows = self.variant(tile, rows)
        return _Launch(
            triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs),
            (x, self._values, self._bias, y, rows, outputs, inner, x.stride(0)),
            {
                "block_rows": tile.rows,
                "block_outputs": tile.outputs,
                "block_inner": tile.inner,
                "group": _ROW_TILES_PER_GROUP,
                "has_bias": self._bias is not None,
                "is_even": inner % tile.inner == 0,
                "masks_rows": masks_rows,
                "num_warps": tile.warps,
                "num_stages": tile.stages,
            },
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
