"""A linear layer whose sums run in one order at any number of rows: no split of the inner
dimension, every product added in turn to one fp32 accumulator."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.linear import DenseWeight, Weight
from alula.ops.triton.tiles import Tile, Tiles, choose, tiles

_ROW_TILES_PER_GROUP = 8
_SMALLEST_INNER = 64


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

    # Beyond the edge the last row is read again: cheaper than a mask, and never stored.
    at = tl.arange(0, block_inner)
    from_x = x + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * x_stride + at[None, :]
    from_weight = weight + tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * inner
    from_weight += at[None, :]
    sums = tl.zeros((block_rows, block_outputs), dtype=tl.float32)
    for start in range(0, inner, block_inner):
        if is_even:
            a, b = tl.load(from_x + start), tl.load(from_weight + start)
        else:
            inside = (start + at < inner)[None, :]
            a = tl.load(from_x + start, mask=inside, other=0.0)
            b = tl.load(from_weight + start, mask=inside, other=0.0)
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
    if has_bias:
        sums += tl.load(bias + tl.minimum(output, outputs - 1)).to(tl.float32)[None, :]
    to = y + row.to(tl.int64)[:, None] * outputs + output[None, :]
    inside = (row < rows)[:, None] & (output < outputs)[None, :]
    tl.store(to, sums.to(y.dtype.element_ty), mask=inside)


class TiledWeight(Weight):
    """A matrix as torch holds it, multiplied by `linear_kernel`."""

    layout = "tiled"
    probed_rows = (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 128, 129, 257)

    def __init__(self, weight: DenseWeight, tiles: Tiles, processors: int) -> None:
        self.shape = weight.shape
        self.dtype = weight.dtype
        self.device = weight.device
        self.tiles = tiles
        self._values = weight.values.contiguous()
        self._bias = weight.bias
        self.processors = processors

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply`; x has contiguous rows."""
        tile = choose(self.tiles, x.shape[0], self.shape[0], self.processors)
        return self.multiply_in(tile, x, dtype)

    def multiply_in_any_order(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply_in_any_order`: by cuBLAS."""
        return DenseWeight(self._values, self._bias).multiply(x, dtype)

    def multiply_in(self, tile: Tile, x: Tensor, dtype: torch.dtype) -> Tensor:
        """As `multiply`, in a given tile."""
        rows, (outputs, inner) = x.shape[0], self.shape
        y = torch.empty(rows, outputs, dtype=dtype, device=x.device)
        block_inner = tile.inner
        while inner % block_inner and block_inner > _SMALLEST_INNER:
            block_inner //= 2
        linear_kernel[(triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs),)](
            *(x, self._values, self._bias, y, rows, outputs, inner, x.stride(0)),
            block_rows=tile.rows,
            block_outputs=tile.outputs,
            block_inner=block_inner,
            group=_ROW_TILES_PER_GROUP,
            has_bias=self._bias is not None,
            is_even=inner % block_inner == 0,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return y


def lay_out(weight: DenseWeight) -> TiledWeight:
    """The weight for `linear_kernel`, with those tiles that agree about its sums."""
    processors, capability = _machine(weight.device)
    known = tiles(weight.shape[0], weight.dtype, capability)
    agreeing = _agreeing(TiledWeight(weight, known, processors))
    return TiledWeight(weight, agreeing, processors)


def _agreeing(weight: TiledWeight) -> Tiles:
    """The tiles whose sums are bit for bit the first one's, tried on this device.

    They may be computed with different instructions of the matrix units.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(weight.tiles[-1].rows + 1, weight.shape[1], generator=generator)
    x = x.to(weight.device, weight.dtype)
    first, *others = [weight.multiply_in(tile, x, torch.float32) for tile in weight.tiles]
    agrees = (True, *(torch.equal(first, other) for other in others))
    return tuple(tile for tile, agreed in zip(weight.tiles, agrees, strict=True) if agreed)


def _machine(device: torch.device) -> tuple[int, tuple[int, int] | None]:
    """Multiprocessors and compute capability."""
    if device.type != "cuda":  # Triton's interpreter
        return 1, None
    return (
        torch.cuda.get_device_properties(device).multi_processor_count,
        torch.cuda.get_device_capability(device),
    )
