"""The kernel of paged attention in which a program sums all that its rows see."""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.attention_streams import rows_of, stream_of
from alula.ops.triton.attention_sums import find, merge, nothing, put, visit
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.segments import segment_of, start_of


@triton.jit(
    do_not_specialize=["rows", "first", "window", "tile_rows", "table_stride", "tail_stride"]
)
def attention_kernel(
    q,
    keys,
    values,
    out,
    sequences,
    last,
    base,
    page_table,
    tail,
    rows,
    first,
    window,
    tile_rows,
    scale,
    q_stride,
    out_stride,
    table_stride,
    tail_stride,
    page_stride,
    head_stride,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    has_tail: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    block_dim: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (i, h) computes rows i * tile_rows … for key-value head h.

    `scale` includes log2(e). Lane n of a tile is query head n % group of its row n // group.
    A tile reads its streams (`attention_streams`) one behind the other.
    """
    release(overlaps)
    first_row = tl.program_id(0) * tile_rows
    end_row = tl.minimum(first_row + tile_rows, rows)
    head = tl.program_id(1)
    keys += head * head_stride
    values += head * head_stride
    of_rows = rows_of(
        *(first_row, end_row, tile_rows, rows, window, first),
        *(sequences, last, base, tail, tail_stride),
        *(group, has_tail, block_queries),
    )
    row, here, _, lowest, _, _, _, _, streams = of_rows
    if has_tail:
        streams += end_row - first_row
    query = head * group + tl.arange(0, block_queries) % group
    at = tl.arange(0, block_dim)

    wait(overlaps)
    of_query = query[:, None] * head_dim + at[None, :]
    exists = here[:, None] & (at < head_dim)[None, :]
    q_tile = tl.load(q + row.to(tl.int64)[:, None] * q_stride + of_query, mask=exists, other=0.0)
    sum_largest = tl.full((block_queries,), -float("inf"), dtype=tl.float32)
    sum_total = tl.zeros((block_queries,), dtype=tl.float32)
    sum_mixed = tl.zeros((block_queries, block_dim), dtype=tl.float32)
    for stream in range(0, streams):
        line, ends, low, end, begin, _, root, own_tail = stream_of(
            stream, first_row, *of_rows, *(base, tail, tail_stride), *(has_tail, block_keys)
        )
        found = (low, end, root, page_table + line * table_stride, own_tail)
        segment = segment_of(begin)
        edge = start_of(segment + 1)
        largest, total, mixed = nothing(block_queries, block_dim)
        next_at = find(begin, *found, page_size, has_tail, block_keys, True)
        for block in tl.range(begin, end, block_keys, disable_licm=True):
            slot = next_at
            next_at = find(block + block_keys, *found, page_size, has_tail, block_keys, True)
            largest, total, mixed = visit(
                *(block, slot, low, end, q_tile, keys, values, lowest, ends),
                *(largest, total, mixed, scale, page_stride),
                *(head_dim, page_size, block_keys, True),
            )
            if block + block_keys == edge:
                sum_largest, sum_total, sum_mixed = merge(
                    *(sum_largest, sum_total, sum_mixed),
                    *(largest, tl.max(total, axis=1), mixed),
                )
                largest, total, mixed = nothing(block_queries, block_dim)
                segment += 1
                edge = start_of(segment + 1)
        sum_largest, sum_total, sum_mixed = merge(
            *(sum_largest, sum_total, sum_mixed),
            *(largest, tl.max(total, axis=1), mixed),
        )
    put(out, row, query, sum_total, sum_mixed, here, out_stride, head_dim)
