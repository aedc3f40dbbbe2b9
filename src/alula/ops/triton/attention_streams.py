"""What a tile of attention reads: its rows, and the streams of keys that they see.

A tile reads the keys that its rows of a sequence share, one stream a sequence, and those that a
node of a tree reads for itself, one stream a row, from the segment of its base on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.attention_sums import known
from alula.ops.triton.segments import segment_of, start_of

FAR = tl.constexpr(1 << 30)


@triton.jit
def rows_of(
    first_row,
    end_row,
    tile_rows,
    rows,
    window,
    first,
    sequences,
    last,
    base,
    tail,
    tail_stride,
    group: tl.constexpr,
    has_tail: tl.constexpr,
    block_queries: tl.constexpr,
):
    """Of the lanes of a tile: their row, whether it exists, its sequence, the lowest position that
    it sees, the end of those it sees and of those it shares, and whether it is a node of a tree.
    Then the tile's first sequence, and how many there are.

    All this is known before the pass, and read before the wait (see `overlap`).
    """
    lane = tl.arange(0, block_queries)
    row = first_row + lane // group
    here = (lane // group < tile_rows) & (row < rows)
    first_line = known(sequences + first_row, True, 0)
    lines = known(sequences + end_row - 1, True, 0) - first_line + 1
    sequence = known(sequences + row, here, -1)
    own_end = known(last + row, here, -1) + 1
    lowest = tl.maximum(own_end - window, first)
    shared_end, in_tree = own_end, here
    if has_tail:
        own_start = start_of(segment_of(known(base + sequence, here, 0)))
        in_tree = known(tail + row.to(tl.int64) * tail_stride, here, -1) >= 0
        shared_end = tl.where(in_tree, tl.minimum(own_start, own_end), own_end)
    return row, here, sequence, lowest, own_end, shared_end, in_tree, first_line, lines


@triton.jit
def stream_of(
    stream,
    first_row,
    row,
    here,
    sequence,
    lowest,
    own_end,
    shared_end,
    in_tree,
    first_line,
    lines,
    base,
    tail,
    tail_stride,
    has_tail: tl.constexpr,
    block_keys: tl.constexpr,
):
    """Of a stream: its sequence, the end of what each lane sees of it, from where and to where it
    goes and where its first block begins, the base of its sequence, the position from which on a
    row's own tail says where keys are, and that tail. The first `lines` streams are shared.
    """
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
    base_of_line = known(base + line, True, 0)
    root, own_tail = end, base  # nobody reads it; before Triton 3.7 no function can return a None
    if has_tail:
        own_tail = tail + own_row.to(tl.int64) * tail_stride
        root = tl.where(is_own, base_of_line, end)
        own_begin = tl.maximum(begin, start_of(segment_of(base_of_line)))
        begin = tl.where(is_own, own_begin, begin)
    return line, ends, low, end, begin, base_of_line, root, own_tail
