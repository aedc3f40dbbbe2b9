"""The kernel of paged attention in which many programs share what a row sees."""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.attention_streams import FAR, rows_of, stream_of
from alula.ops.triton.attention_sums import add, conclude, find, known, nothing, read, visit
from alula.ops.triton.loads import behind
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.segments import segment_of, segments_below, start_of


@triton.jit(
    do_not_specialize=[
        "rows",
        "first",
        "window",
        "settled",
        "tile_rows",
        "spread",
        "segments",
        "sums",
        "table_stride",
        "tail_stride",
    ]
)
def spread_attention_kernel(
    q,
    keys,
    values,
    out,
    sequences,
    last,
    base,
    page_table,
    tail,
    scratch,
    arrivals,
    rows,
    first,
    window,
    settled,
    tile_rows,
    spread,
    segments,
    sums,
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
    block_merged: tl.constexpr,
    block_group: tl.constexpr,
    merged_together: tl.constexpr,
    reads_early: tl.constexpr,
    pipelined: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Programs (i, h, ·) compute rows i * tile_rows … for key-value head h, as `attention_kernel`.

    Program p of the first `spread` takes every spread-th segment of what the tile's rows of a
    sequence share, and each program behind takes what one row, a node of a tree, reads for itself.
    They leave their sums in `scratch`, [sums, head_dim] mixed, then [sums] largest, then [sums]
    totals, and of each lane the last to arrive merges them.

    A program that has nothing to do ends without waiting: of every tile the first one waits.

    With `reads_early`, keys and values of a segment's first block that are `settled` (see `Rows`)
    are read before the wait; it takes registers that trees and large tiles do not have.
    """
    release(overlaps)
    first_row = tl.program_id(0) * tile_rows
    end_row = tl.minimum(first_row + tile_rows, rows)
    head, part = tl.program_id(1), tl.program_id(2)
    query_heads = tl.num_programs(1) * group
    keys += head * head_stride
    values += head * head_stride
    of_rows = rows_of(
        *(first_row, end_row, tile_rows, rows, window, first),
        *(sequences, last, base, tail, tail_stride),
        *(group, has_tail, block_queries),
    )
    row, here, _, lowest, own_end, shared_end, in_tree, _, lines = of_rows
    query = head * group + tl.arange(0, block_queries) % group
    at = tl.arange(0, block_dim)

    merged = tl.arange(0, block_merged) // group
    merged_row = first_row + merged
    merged_here = (merged < tile_rows) & (merged_row < rows)
    merged_end = known(last + merged_row, merged_here, -1) + 1
    merged_lowest = tl.maximum(merged_end - window, first)
    from_segment = segment_of(tl.min(tl.where(lowest < own_end, lowest, FAR), axis=0))
    shared = segments_below(tl.max(shared_end, axis=0)) - from_segment
    workers = tl.minimum(tl.maximum(shared, 1), spread)
    arrivers, arrives, is_needed = workers, merged_here, part < workers
    from_stream, to_stream = 0, lines
    if has_tail:
        of_tree = known(tail + merged_row.to(tl.int64) * tail_stride, merged_here, -1) >= 0
        arrivers = workers + of_tree.to(tl.int32)
        if part >= spread:
            arrives = of_tree & (merged == part - spread)
            from_stream = lines + part - spread
            to_stream = from_stream + 1
            is_of_part = in_tree & (row == first_row + part - spread)
            is_needed = tl.max(is_of_part.to(tl.int32), axis=0) > 0

    if is_needed:
        of_query = query[:, None] * head_dim + at[None, :]
        exists = here[:, None] & (at < head_dim)[None, :]
        from_q = q + row.to(tl.int64)[:, None] * q_stride + of_query
        place = (row * query_heads + query) * segments
        to_mixed = scratch + place[:, None] * head_dim + at[None, :]
        to_largest = scratch + sums * head_dim + place
        column = tl.arange(0, 16)[None, :]
        for stream in range(from_stream, to_stream):
            line, ends, low, end, begin, base_of_line, root, own_tail = stream_of(
                stream, first_row, *of_rows, *(base, tail, tail_stride), *(has_tail, block_keys)
            )
            start, step = from_segment + part, spread
            if has_tail:
                start = tl.where(stream >= lines, segment_of(begin), start)
                step = tl.where(stream >= lines, 1, step)
            found = (low, end, root, page_table + line * table_stride, own_tail)
            old_end = tl.minimum(tl.where(settled != 0, base_of_line, 0), end)
            # Not in a pipeline, which would begin before the wait.
            for segment in tl.range(start, segments_below(end), step, num_stages=1):
                block = tl.maximum(start_of(segment), begin)
                to_block = tl.minimum(start_of(segment + 1), end)
                if reads_early:
                    slot = find(block, *found, page_size, has_tail, block_keys, False)
                    position = block + tl.arange(0, block_keys)
                    k = tl.zeros((block_keys, block_dim), dtype=keys.dtype.element_ty)
                    v = tl.zeros((block_keys, block_dim), dtype=values.dtype.element_ty)
                    is_old = (position >= low) & (position < old_end)
                    k, v = read(
                        *(keys, values, slot, is_old, k, v, page_stride),
                        *(head_dim, page_size, False),
                    )
                wait(overlaps)
                q_tile = tl.load(from_q, mask=exists, other=0.0)
                if reads_early:
                    is_new = (position >= tl.maximum(low, old_end)) & (position < end)
                    k, v = read(
                        *(keys, values, slot, is_new, k, v, page_stride),
                        *(head_dim, page_size, True),
                    )
                    q_tile, k, v = behind(q_tile), behind(k), behind(v)
                    largest, total, mixed = add(
                        *(block, k, v, q_tile, lowest, ends), 0.0, 0.0, 0.0, scale, True
                    )
                    block += block_keys
                else:
                    largest, total, mixed = nothing(block_queries, block_dim)
                for later in tl.range(block, to_block, block_keys, disable_licm=True):
                    slot = find(later, *found, page_size, has_tail, block_keys, True)
                    largest, total, mixed = visit(
                        *(later, slot, low, end, q_tile, keys, values, lowest, ends),
                        *(largest, total, mixed, scale, page_stride),
                        *(head_dim, page_size, block_keys, pipelined),
                    )
                sees = start_of(segment) < ends
                tl.store(to_mixed + segment * head_dim, mixed, mask=sees[:, None] & exists)
                tl.store(to_largest + segment, largest, mask=sees)
                to = (to_largest + sums + segment)[:, None] + column
                tl.store(to, total, mask=sees[:, None] & (column == 0))

        # All threads have stored before one of them says so, and none reads before it knows.
        wait(overlaps)
        merged_query = head * group + tl.arange(0, block_merged) % group
        counter = arrivals + merged_row * query_heads + merged_query
        tl.debug_barrier()
        before = tl.atomic_add(counter, 1, mask=arrives, sem="acq_rel")
        is_last = arrives & (before == arrivers - 1)
        tl.debug_barrier()
        if tl.max(is_last.to(tl.int32), axis=0) > 0:
            tl.store(counter, 0, mask=is_last)
            to_segment = segments_below(tl.max(own_end, axis=0))
            of_all = (from_segment, to_segment, query_heads, segments, sums, out_stride)
            if has_tail:  # mostly it is one row's program that is last, and for that row alone
                for n in range(0, tile_rows):
                    of_row = merged == n
                    if tl.max((is_last & of_row).to(tl.int32), axis=0) > 0:
                        of_group = tl.arange(0, block_group)
                        conclude(
                            *(scratch, out, first_row + n + of_group * 0),
                            *(head * group + of_group, of_group < group),
                            tl.max(tl.where(of_row, merged_lowest, 0), axis=0),
                            tl.max(tl.where(of_row, merged_end, 0), axis=0),
                            *of_all,
                            *(head_dim, block_dim, merged_together),
                        )
            else:
                conclude(
                    *(scratch, out, merged_row, merged_query, is_last),
                    *(merged_lowest, merged_end),
                    *of_all,
                    *(head_dim, block_dim, merged_together),
                )
