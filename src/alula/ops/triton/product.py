"""What every kernel that multiplies by a weight begins with: its tile, and the tile's sums.

No split of the inner dimension among programs, and one order of adding for all tiles of a weight:
a tile's sums are those of any other tile. Of most weights every product is added in turn to one
fp32 accumulator. Where rows are short, weights are mostly so small that they are waited for and not
read, and a chain of additions is much of the waiting: there 64 products at a time are a sum of
their own, which need not wait for others, and these sums are added in turn.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.loads import behind
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.tiles import Shape, Tile

SQUARES_UNIT = tl.constexpr(2.0**28)
"""Sums of squares are kept as whole multiples of 1 / this, since integers add in any order to the
same sum. Up to 3.4e10 fits; 4e-9 is lost where RMSNorm adds 1e-6 to the mean."""

_RELEASES = ("at input", "at end")
"""What a tile may say, from 1 on."""


@triton.jit
def place(rows, lanes, block_rows: tl.constexpr, block_lanes: tl.constexpr, group: tl.constexpr):
    """The rows and lanes of this program's tile: [block_rows], [block_lanes].

    Programs run through groups of `group` row tiles, lane tile by lane tile, so that those that
    run at a time share what they read.
    """
    program = tl.program_id(0)
    row_tiles = tl.cdiv(rows, block_rows)
    lane_tiles = tl.cdiv(lanes, block_lanes)
    first_tile = program // (group * lane_tiles) * group
    group_rows = tl.minimum(row_tiles - first_tile, group)
    at = program % (group * lane_tiles)
    row = (first_tile + at % group_rows) * block_rows + tl.arange(0, block_rows)
    return row, at // group_rows * block_lanes + tl.arange(0, block_lanes)


@triton.jit
def start(releases: tl.constexpr, overlaps: tl.constexpr):
    """Let the next kernel begin if it may "at once"; for weights so small that time goes into
    waiting and not into reading.
    """
    if releases == "at once":
        release(overlaps)


@triton.jit
def begin(releases: tl.constexpr, overlaps: tl.constexpr):
    """Wait for x, and let the next kernel begin if it may "at input"."""
    wait(overlaps)
    if releases == "at input":
        release(overlaps)


@triton.jit
def fetch(weight, output, inner, block_inner: tl.constexpr, ahead: tl.constexpr):
    """The first `ahead` steps of rows `output` of weight [outputs, inner], each a tile: no kernel
    writes weights, so that they may be under way before x is there.
    """
    at = tl.arange(0, block_inner)
    from_weight = weight + output.to(tl.int64)[:, None] * inner + at[None, :]
    loaded = ()
    for i in tl.static_range(ahead):
        loaded = loaded + (tl.load(from_weight + i * block_inner),)  # type: ignore[assignment]
    steps = ()
    for i in tl.static_range(ahead):
        steps = steps + (behind(loaded[i]),)  # type: ignore[assignment]
    return steps


@triton.jit
def multiply(
    x,
    weight,
    fetched,
    row,
    output,
    rows,
    inner,
    x_stride,
    block_inner: tl.constexpr,
    is_even: tl.constexpr,
    masks_rows: tl.constexpr,
    by_steps: tl.constexpr,
    ahead: tl.constexpr,
    has_more: tl.constexpr,
):
    """x [rows, inner] times rows `output` of weight [outputs, inner]: [block_rows, block_lanes].

    `fetched`: what `fetch` has of it.
    """
    # What is computed beyond the edge is never stored. Among many rows it is cheaper to read the
    # last one again than to mask; of a few, all processors would read the same bytes at a time.
    at = tl.arange(0, block_inner)
    from_x = x + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * x_stride + at[None, :]
    from_weight = weight + output.to(tl.int64)[:, None] * inner + at[None, :]
    exists = (row < rows)[:, None]
    sums = tl.zeros((row.shape[0], output.shape[0]), dtype=tl.float32)
    loaded = ()
    for i in tl.static_range(ahead):
        if masks_rows:
            a = tl.load(from_x + i * block_inner, mask=exists, other=0.0)
        else:
            a = tl.load(from_x + i * block_inner)
        loaded = loaded + (a,)  # type: ignore[assignment]
    beside = ()
    for i in tl.static_range(ahead):
        beside = beside + (behind(loaded[i]),)  # type: ignore[assignment]
    for i in tl.static_range(ahead):
        sums = add_step(beside[i], fetched[i], sums, by_steps)
    if has_more:
        for start in range(ahead * block_inner, inner, block_inner):
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
            sums = add_step(a, b, sums, by_steps)
    return sums


@triton.jit
def add_step(a, b, sums, by_steps: tl.constexpr):
    """Add the products of one step."""
    if by_steps:  # `fma`, since Triton turns a plain sum into one chain again
        sums = tl.fma(tl.dot(a, tl.trans(b), input_precision="ieee"), 1.0, sums)
    else:
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
    return sums


@triton.jit
def end(releases: tl.constexpr, overlaps: tl.constexpr):
    """Let the next kernel begin, if it has not been let."""
    if releases == "at end":
        release(overlaps)


@triton.jit
def squares_of(squares, row, rows, has_squares: tl.constexpr):
    """The sums of squares of every row, for `divisor`; 0 where nothing is left to divide by."""
    if has_squares:
        total = tl.load(squares + tl.minimum(row, rows - 1))
    else:
        total = tl.zeros((row.shape[0],), dtype=tl.int64)
    return total


@triton.jit
def divisor(total, inner, eps, has_squares: tl.constexpr):
    """One over the root mean square of every row, or 1 where nothing is left to divide by."""
    if has_squares:
        mean = behind(total).to(tl.float32) / SQUARES_UNIT / inner
        scale = tl.rsqrt(mean + eps)
    else:
        scale = tl.full((total.shape[0],), 1.0, dtype=tl.float32)
    return scale


@triton.jit
def complete(sums, scale, bias, output, has_bias: tl.constexpr):
    """The sums of outputs `output`, divided as `divisor` says, with their bias."""
    sums *= scale[:, None]
    if has_bias:
        sums += tl.load(bias + output).to(tl.float32)[None, :]
    return sums


@triton.jit
def in_units(x):
    """The squares of x as whole multiples of the unit."""
    return (x * x * SQUARES_UNIT + 0.5).to(tl.int64)


def releases(weight: Tensor, tile: Tile) -> str:
    """When a weight's kernel lets the next one begin."""
    if tile.release:
        return _RELEASES[tile.release - 1]
    outputs, inner = weight.shape
    return "at once" if Shape(outputs, inner, weight.dtype.itemsize).is_small else "at end"
