"""Kernels that multiply by a weight and do what follows in the same launch.

Each rounds where the separate ops round.
"""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.loads import behind
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.product import (
    begin,
    complete,
    divisor,
    end,
    fetch,
    in_units,
    multiply,
    place,
    squares_of,
    start,
)
from alula.ops.triton.rope import turned


@triton.jit
def pair_rows(lane, pairs, span):
    """Of lanes 2 p and 2 p + 1 the outputs that belong together: element p % span of the first and
    of the second half of block p // span.
    """
    pair = tl.minimum(lane // 2, pairs - 1)
    return pair // span * 2 * span + pair % span + lane % 2 * span


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
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
    """A program computes one tile of y [rows, outputs / 2]."""
    pairs = outputs // 2
    start(releases, overlaps)
    row, lane = place(rows, outputs, block_rows, block_outputs, group)
    output = pair_rows(lane, pairs, pairs)
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
    sums = sums.to(y.dtype.element_ty).to(tl.float32)
    gate, up = tl.split(tl.reshape(sums, (block_rows, block_outputs // 2, 2)))
    product = gate / (1.0 + tl.exp(-gate)) * up
    _, pair = place(rows, pairs, block_rows, block_outputs // 2, group)
    to = y + row.to(tl.int64)[:, None] * pairs + pair[None, :]
    inside = (row < rows)[:, None] & (pair < pairs)[None, :]
    tl.store(to, product.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def heads_kernel(
    x,
    weight,
    bias,
    squares,
    cos,
    sin,
    queries,
    keys,
    values,
    pages,
    lanes,
    rows,
    outputs,
    inner,
    x_stride,
    page_stride,
    head_stride,
    eps,
    query_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
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
    """A program computes one tile of pairs of elements that are rotated together, of any heads."""
    pairs = outputs // 2
    start(releases, overlaps)
    row, lane = place(rows, outputs, block_rows, block_outputs, group)
    output = pair_rows(lane, pairs, half)
    fetched = fetch(weight, output, inner, block_inner, ahead)
    begin(releases, overlaps)
    total = squares_of(squares, row, rows, has_squares)
    # What the end needs is under way while the sums are made.
    _, pair = place(rows, pairs, block_rows, block_outputs // 2, group)
    inside = (row < rows)[:, None] & (pair < pairs)[None, :]
    head, low = pair // half, pair % half
    angle = row.to(tl.int64)[:, None] * 2 * half + low[None, :]
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle + half, mask=inside, other=0.0)
    page = tl.load(pages + row, mask=row < rows, other=-1)
    at = page * page_stride + tl.load(lanes + row, mask=row < rows, other=0) * 2 * half
    sums = multiply(
        *(x, weight, fetched, row, output, rows, inner, x_stride),
        *(block_inner, is_even, masks_rows, by_steps, ahead, has_more),
    )
    end(releases, overlaps)
    scale = divisor(total, inner, eps, has_squares)
    sums = complete(sums, scale, bias, output, has_bias)
    sums = sums.to(queries.dtype.element_ty).to(tl.float32)
    first_in, second_in = tl.split(tl.reshape(sums, (block_rows, block_outputs // 2, 2)))

    c, s = behind(c), behind(s)
    first, second = turned(first_in, second_in, c, s)
    first, second = first.to(queries.dtype.element_ty), second.to(queries.dtype.element_ty)
    is_query = (head < query_heads)[None, :]
    of_row = row.to(tl.int64)[:, None] * query_heads * 2 * half
    to_query = queries + of_row + (head * 2 * half + low)[None, :]
    tl.store(to_query, first, mask=inside & is_query)
    tl.store(to_query + half, second, mask=inside & is_query)

    stores = inside & (page >= 0)[:, None]
    is_key = (head >= query_heads) & (head < query_heads + kv_heads)
    to_key = keys + at[:, None] + ((head - query_heads) * head_stride + low)[None, :]
    tl.store(to_key, first.to(keys.dtype.element_ty), mask=stores & is_key[None, :])
    tl.store(to_key + half, second.to(keys.dtype.element_ty), mask=stores & is_key[None, :])
    is_value = stores & (head >= query_heads + kv_heads)[None, :]
    of_value = (head - query_heads - kv_heads) * head_stride + low
    to_value = values + at[:, None] + of_value[None, :]
    tl.store(to_value, first_in.to(values.dtype.element_ty), mask=is_value)
    tl.store(to_value + half, second_in.to(values.dtype.element_ty), mask=is_value)


@triton.jit(do_not_specialize=["rows"])
def add_linear_kernel(
    x,
    weight,
    bias,
    before,
    norm,
    total,
    scaled,
    squares,
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
    by_steps: tl.constexpr,
    ahead: tl.constexpr,
    has_more: tl.constexpr,
    releases: tl.constexpr,
    overlaps: tl.constexpr,
):
    """A program computes one tile of the residual stream [rows, outputs], times the next norm's
    weight, and its part of the sums of squares.
    """
    start(releases, overlaps)
    row, lane = place(rows, outputs, block_rows, block_outputs, group)
    output = tl.minimum(lane, outputs - 1)
    fetched = fetch(weight, output, inner, block_inner, ahead)
    begin(releases, overlaps)
    inside = (row < rows)[:, None] & (lane < outputs)[None, :]
    at = row.to(tl.int64)[:, None] * outputs + lane[None, :]
    x_before = tl.load(before + at, mask=inside, other=0.0)
    factor = tl.load(norm + output)
    sums = multiply(
        *(x, weight, fetched, row, output, rows, inner, x_stride),
        *(block_inner, is_even, masks_rows, by_steps, ahead, has_more),
    )
    end(releases, overlaps)
    if has_bias:
        sums += tl.load(bias + output).to(tl.float32)[None, :]
    change = sums.to(total.dtype.element_ty).to(tl.float32)
    sum_in = (behind(x_before).to(tl.float32) + change).to(total.dtype.element_ty)
    wide = sum_in.to(tl.float32)
    tl.store(total + at, sum_in, mask=inside)
    by_norm = wide * behind(factor)[None, :]
    tl.store(scaled + at, by_norm.to(scaled.dtype.element_ty), mask=inside)
    units = tl.sum(tl.where(inside, in_units(wide), 0), axis=1)
    tl.atomic_add(squares + row, units, mask=row < rows, sem="relaxed")


@triton.jit
def add_scale_kernel(
    before, change, norm, total, scaled, squares, width, block: tl.constexpr, overlaps: tl.constexpr
):
    """Program r adds row r; as `add_linear_kernel` behind its product."""
    release(overlaps)
    wait(overlaps)
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    inside = lane < width
    at = row * width + lane
    x_before = tl.load(before + at, mask=inside, other=0.0).to(tl.float32)
    sum_in = x_before + tl.load(change + at, mask=inside, other=0.0).to(tl.float32)
    wide = sum_in.to(total.dtype.element_ty).to(tl.float32)
    tl.store(total + at, wide.to(total.dtype.element_ty), mask=inside)
    by_norm = wide * tl.load(norm + lane, mask=inside, other=0.0)
    tl.store(scaled + at, by_norm.to(scaled.dtype.element_ty), mask=inside)
    tl.store(squares + row, tl.sum(in_units(wide), axis=0))


@triton.jit
def embed_kernel(
    ids,
    table,
    norm,
    x,
    scaled,
    squares,
    rows,
    width,
    changes,
    block: tl.constexpr,
    block_changes: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program r looks row r up, and zeroes its sums of squares that are to come."""
    wait(overlaps)
    release(overlaps)  # not before: see `overlap`
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    inside = lane < width
    token = tl.load(ids + row)
    found = tl.load(table + token * width + lane, mask=inside, other=0.0)
    wide = found.to(x.dtype.element_ty).to(tl.float32)
    tl.store(x + row * width + lane, wide.to(x.dtype.element_ty), mask=inside)
    by_norm = wide * tl.load(norm + lane, mask=inside, other=0.0)
    tl.store(scaled + row * width + lane, by_norm.to(scaled.dtype.element_ty), mask=inside)
    later = tl.arange(0, block_changes)
    units = tl.where(later == 0, tl.sum(in_units(wide), axis=0), 0)
    tl.store(squares + later.to(tl.int64) * rows + row, units, mask=later <= changes)
