"""The kernel of paged attention in which a program sums all that its rows see."""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.attention_sums import find, known, merge, nothing, put, visit
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.segments import segment_of, start_of

FAR = tl.constexpr(1 << 30)


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

    A tile reads streams, one behind the other: the keys that its rows of a sequence share, one
    stream a sequence, and those that a node of a tree reads for itself, from the segment of its
    base on.
    """
    release(overlaps)
    first_row = tl.program_id(0) * tile_rows
    end_row = tl.minimum(first_row + tile_rows, rows)
    head = tl.program_id(1)
    keys += head * head_stride
    values += head * head_stride
    lane = tl.arange(0, block_queries)
    at = tl.arange(0, block_dim)
    row = first_row + lane // group
    here = (lane // group < tile_rows) & (row < rows)
    query = head * group + lane % group

    # What rows are is read before the wait (see `overlap`).
    first_line = known(sequences + first_row, True, 0)
    streams = known(sequences + end_row - 1, True, 0) - first_line + 1
    sequence = known(sequences + row, here, -1)
    own_end = known(last + row, here, -1) + 1
    lowest = tl.maximum(own_end - window, first)
    shared_end = own_end
    if has_tail:
        lines = streams
        streams += end_row - first_row
        root_of = known(base + sequence, here, 0)
        in_tree = known(tail + row.to(tl.int64) * tail_stride, here, -1) >= 0
        own_start = start_of(segment_of(root_of))
        shared_end = tl.where(in_tree, tl.minimum(own_start, own_end), own_end)

    wait(overlaps)
    of_query = query[:, None] * head_dim + at[None, :]
    exists = here[:, None] & (at < head_dim)[None, :]
    q_tile = tl.load(q + row.to(tl.int64)[:, None] * q_stride + of_query, mask=exists, other=0.0)
    sum_largest = tl.full((block_queries,), -float("inf"), dtype=tl.float32)
    sum_total = tl.zeros((block_queries,), dtype=tl.float32)
    sum_mixed = tl.zeros((block_queries, block_dim), dtype=tl.float32)
    for stream in range(0, streams):
        line, ends = first_line + stream, shared_end
        of = here & (sequence == line)
        if has_tail:
            is_own = stream >= lines
            own_row = tl.maximum(first_row + stream - lines, 0)
            of = tl.where(is_own, in_tree & (row == own_row), of)
            ends = tl.where(is_own, own_end, ends)
            line = tl.where(is_own, tl.max(tl.where(of, sequence, 0), axis=0), line)
        ends = tl.where(of, ends, 0)
        end = tl.max(ends, axis=0)
        low = tl.minimum(tl.min(tl.where(of, lowest, FAR), axis=0), end)
        begin = low // block_keys * block_keys
        root, own_tail = end, tail
        if has_tail:
            own_tail = tail + own_row.to(tl.int64) * tail_stride
            root = tl.where(is_own, tl.max(tl.where(of, root_of, 0), axis=0), end)
            own_begin = tl.maximum(begin, tl.max(tl.where(of, own_start, 0), axis=0))
            begin = tl.where(is_own, own_begin, begin)
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
                *(head_dim, page_size, block_keys),
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
