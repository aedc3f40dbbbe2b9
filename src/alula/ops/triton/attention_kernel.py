"""The kernel of paged attention: which program sums what, and who merges it."""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.attention_sums import conclude, find, known, merge, nothing, put, visit
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.segments import segment_of, segments_below, start_of

_FAR = tl.constexpr(1 << 30)


@triton.jit(
    do_not_specialize=[
        "rows",
        "first",
        "window",
        "tile_rows",
        "spread",
        "segments",
        "sums",
        "table_stride",
        "tail_stride",
    ]
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
    scratch,
    arrivals,
    rows,
    first,
    window,
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
    spreads: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    block_dim: tl.constexpr,
    block_merged: tl.constexpr,
    block_group: tl.constexpr,
    merged_together: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Programs (i, h, ·) compute rows i * tile_rows … for key-value head h.

    `scale` includes log2(e). Lane n of a tile is query head n % group of its row n // group.

    A tile reads streams: the keys that its rows of a sequence share, one stream a sequence, and
    those that a node of a tree reads for itself, from the segment of its base on. One program
    reads them all, or, if it `spreads`, program p of the first `spread` takes every spread-th
    segment of the former, and each program behind takes the latter of one row. They leave their
    sums in `scratch`, [sums, head_dim] mixed, then [sums] largest, then [sums] totals, and of each
    lane the last to arrive merges them.
    """
    release(overlaps)
    first_row = tl.program_id(0) * tile_rows
    end_row = tl.minimum(first_row + tile_rows, rows)
    head, part = tl.program_id(1), tl.program_id(2)
    keys += head * head_stride
    values += head * head_stride
    lane = tl.arange(0, block_queries)
    at = tl.arange(0, block_dim)
    row = first_row + lane // group
    here = (lane // group < tile_rows) & (row < rows)
    query = head * group + lane % group
    of_query = query[:, None] * head_dim + at[None, :]
    exists = here[:, None] & (at < head_dim)[None, :]

    # What rows are is read before the wait (see `overlap`).
    first_line = known(sequences + first_row, True, 0)
    lines = known(sequences + end_row - 1, True, 0) - first_line + 1
    sequence = known(sequences + row, here, -1)
    own_end = known(last + row, here, -1) + 1
    lowest = tl.maximum(own_end - window, first)
    shared_end = own_end
    if has_tail:
        root_of = known(base + sequence, here, 0)
        in_tree = known(tail + row.to(tl.int64) * tail_stride, here, -1) >= 0
        own_start = start_of(segment_of(root_of))
        shared_end = tl.where(in_tree, tl.minimum(own_start, own_end), own_end)

    from_stream, to_stream, is_needed = 0, lines, True
    if spreads:
        merged = tl.arange(0, block_merged) // group
        merged_row = first_row + merged
        merged_here = (merged < tile_rows) & (merged_row < rows)
        merged_end = known(last + merged_row, merged_here, -1) + 1
        merged_lowest = tl.maximum(merged_end - window, first)
        from_segment = segment_of(tl.min(tl.where(lowest < own_end, lowest, _FAR), axis=0))
        shared = segments_below(tl.max(shared_end, axis=0)) - from_segment
        workers = tl.minimum(tl.maximum(shared, 1), spread)
        arrivers, arrives, is_needed = workers, merged_here, part < workers
        if has_tail:
            of_tree = known(tail + merged_row.to(tl.int64) * tail_stride, merged_here, -1) >= 0
            arrivers = workers + of_tree.to(tl.int32)
            if part >= spread:
                arrives = of_tree & (merged == part - spread)
                from_stream = lines + part - spread
                to_stream = from_stream + 1
                is_of_part = in_tree & (row == first_row + part - spread)
                is_needed = tl.max(is_of_part.to(tl.int32), axis=0) > 0
    elif has_tail:
        to_stream += end_row - first_row

    if is_needed:
        from_q = q + row.to(tl.int64)[:, None] * q_stride + of_query
        if not spreads:
            wait(overlaps)
            q_tile = tl.load(from_q, mask=exists, other=0.0)
        sum_largest = tl.full((block_queries,), -float("inf"), dtype=tl.float32)
        sum_total = tl.zeros((block_queries,), dtype=tl.float32)
        sum_mixed = tl.zeros((block_queries, block_dim), dtype=tl.float32)
        if spreads:
            place = (row * tl.num_programs(1) * group + query) * segments
            to_mixed = scratch + place[:, None] * head_dim + at[None, :]
            to_largest = scratch + sums * head_dim + place
            column = tl.arange(0, 16)[None, :]
        for stream in range(from_stream, to_stream):
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
            low = tl.minimum(tl.min(tl.where(of, lowest, _FAR), axis=0), end)
            begin = low // block_keys * block_keys
            root, own_tail = end, tail
            if spreads:
                start, step = from_segment + part, spread
            if has_tail:
                own_tail = tail + own_row.to(tl.int64) * tail_stride
                root = tl.where(is_own, tl.max(tl.where(of, root_of, 0), axis=0), end)
                own_begin = tl.maximum(begin, tl.max(tl.where(of, own_start, 0), axis=0))
                begin = tl.where(is_own, own_begin, begin)
                if spreads:
                    start = tl.where(is_own, segment_of(begin), start)
                    step = tl.where(is_own, 1, step)
            found = (low, end, root, page_table + line * table_stride, own_tail)
            if spreads:
                for segment in range(start, segments_below(end), step):
                    from_block = tl.maximum(start_of(segment), begin)
                    to_block = tl.minimum(start_of(segment + 1), end)
                    largest, total, mixed = nothing(block_queries, block_dim)
                    next_at = find(from_block, *found, page_size, has_tail, block_keys, False)
                    wait(overlaps)
                    q_tile = tl.load(from_q, mask=exists, other=0.0)
                    for block in tl.range(from_block, to_block, block_keys, disable_licm=True):
                        slot = next_at
                        next_at = find(
                            block + block_keys, *found, page_size, has_tail, block_keys, False
                        )
                        largest, total, mixed = visit(
                            *(block, slot, low, end, q_tile, keys, values, lowest, ends),
                            *(largest, total, mixed, scale, page_stride),
                            *(head_dim, page_size, block_keys),
                        )
                    sees = start_of(segment) < ends
                    tl.store(to_mixed + segment * head_dim, mixed, mask=sees[:, None] & exists)
                    tl.store(to_largest + segment, largest, mask=sees)
                    to = (to_largest + sums + segment)[:, None] + column
                    tl.store(to, total, mask=sees[:, None] & (column == 0))
            else:
                segment = segment_of(begin)
                edge = start_of(segment + 1)
                largest, total, mixed = nothing(block_queries, block_dim)
                next_at = find(begin, *found, page_size, has_tail, block_keys, True)
                for block in tl.range(begin, end, block_keys, disable_licm=True):
                    slot = next_at
                    next_at = find(
                        block + block_keys, *found, page_size, has_tail, block_keys, True
                    )
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

        if spreads:
            # All threads have stored before one of them says so, and none reads before it knows.
            wait(overlaps)
            merged_query = head * group + tl.arange(0, block_merged) % group
            counter = arrivals + merged_row * tl.num_programs(1) * group + merged_query
            tl.debug_barrier()
            before = tl.atomic_add(counter, 1, mask=arrives, sem="acq_rel")
            is_last = arrives & (before == arrivers - 1)
            tl.debug_barrier()
            if tl.max(is_last.to(tl.int32), axis=0) > 0:
                tl.store(counter, 0, mask=is_last)
                to_segment = segments_below(tl.max(own_end, axis=0))
                query_heads = tl.num_programs(1) * group
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
        else:
            put(out, row, query, sum_total, sum_mixed, here, out_stride, head_dim)
    wait(overlaps)
