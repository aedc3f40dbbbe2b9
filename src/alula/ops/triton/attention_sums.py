"""The sums of attention, and their order.

Within a segment (`segments`) keys are visited in blocks, in order, and added to an online softmax
(Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135) that starts afresh with
each segment; the segments' sums are merged in order by one formula. So it makes no difference who
computes a segment. A block or segment of which a row sees nothing leaves that row as it was, so
that a program may visit what any of its rows sees. Row sums come from the matrix units too:
unlike a reduction, they add in one order whatever the tile's size. Where a product is added to
something, `fma` says so: the compiler would fuse them in one place and not in another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops.triton.loads import behind
from alula.ops.triton.segments import start_of


@triton.jit
def nothing(block_queries: tl.constexpr, block_dim: tl.constexpr):
    """A softmax without keys: the largest score, the total weight (all columns alike), the mix."""
    largest = tl.full((block_queries,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((block_queries, 16), dtype=tl.float32)
    return largest, total, tl.zeros((block_queries, block_dim), dtype=tl.float32)


@triton.jit
def known(at, inside, other: tl.constexpr, waited: tl.constexpr = False):
    """Whole numbers that no kernel of this pass has written. Before the wait they are read from
    where all processors see them, since what one of them has kept nearby may be older.
    """
    if waited:
        found = tl.load(at, mask=inside, other=other)
    else:
        found = tl.load(at, mask=inside, other=other, cache_modifier=".cg")
    return found.to(tl.int32)


@triton.jit
def find(
    block,
    low,
    end,
    root,
    table,
    own_tail,
    page_size: tl.constexpr,
    has_tail: tl.constexpr,
    block_keys: tl.constexpr,
    waited: tl.constexpr,
):
    """Slots of the keys at positions `block` …, of those from `low` to `end`, else 0.

    They are where the page table says, from `root` on where the tail says.
    """
    position = block + tl.arange(0, block_keys)
    stored = (position >= low) & (position < end)
    in_table = stored
    if has_tail:
        in_table = stored & (position < root)
    page = known(table + position // page_size, in_table, 0, waited)
    slot = page * page_size + position % page_size
    if has_tail:
        own = known(own_tail + position - root, stored & (position >= root), 0, waited)
        slot = tl.where(position < root, slot, own)
    return slot


@triton.jit
def read(
    keys,
    values,
    slot,
    inside,
    k,
    v,
    page_stride,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    waited: tl.constexpr,
):
    """Keys and values of `slot` that are `inside`; for others what `k` and `v` have."""
    place = (slot // page_size).to(tl.int64) * page_stride + slot % page_size * head_dim
    at = tl.arange(0, k.shape[1])[None, :]
    inside = inside[:, None]
    if k.shape[1] != head_dim:
        inside = inside & (at < head_dim)
    modifier: tl.constexpr = "" if waited else ".cg"  # as for `known`
    of = place[:, None] + at
    k = tl.load(keys + of, mask=inside, other=k, cache_modifier=modifier)
    return k, tl.load(values + of, mask=inside, other=v, cache_modifier=modifier)


@triton.jit
def add(block, k, v, q, lowest, ends, largest, total, mixed, scale, afresh: tl.constexpr):
    """Add the keys and values at positions `block` … to the softmax of a tile's rows, or begin one.

    Each row sees those from its own `lowest` to its own of `ends`.
    """
    position = block + tl.arange(0, k.shape[0])
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    sees = (position[None, :] >= lowest[:, None]) & (position[None, :] < ends[:, None])
    scores = tl.where(sees, scores, -float("inf"))
    new = tl.max(scores, axis=1) * scale
    if not afresh:
        new = tl.maximum(largest, new)
    pivot = tl.where(new == -float("inf"), 0.0, new)
    weights = tl.exp2(tl.fma(scores, scale, -pivot[:, None])).to(v.dtype)
    ones = tl.full((k.shape[0], 16), 1.0, dtype=v.dtype)
    if afresh:
        total = tl.dot(weights, ones, input_precision="ieee")
        mixed = tl.dot(weights, v, input_precision="ieee")
    else:
        kept = tl.exp2(largest - pivot)[:, None]
        total = tl.dot(weights, ones, total * kept, input_precision="ieee")
        mixed = tl.dot(weights, v, mixed * kept, input_precision="ieee")
    return new, total, mixed


@triton.jit
def visit(
    block,
    slot,
    low,
    end,
    q,
    keys,
    values,
    lowest,
    ends,
    largest,
    total,
    mixed,
    scale,
    page_stride,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    block_keys: tl.constexpr,
    pipelined: tl.constexpr,
):
    """Read the block of keys at position `block` and add it: keys exist from position `low` to
    `end`; others may hold anything, and read as zero. Where they are not read in a pipeline,
    values are on their way together with keys.
    """
    position = block + tl.arange(0, block_keys)
    inside = (position >= low) & (position < end)
    none = tl.zeros((block_keys, q.shape[1]), dtype=q.dtype)
    k, v = read(keys, values, slot, inside, none, none, page_stride, head_dim, page_size, True)
    if not pipelined:
        k, v = behind(k), behind(v)
    return add(block, k, v, q, lowest, ends, largest, total, mixed, scale, False)


@triton.jit
def merge(largest, total, mixed, next_largest, next_total, next_mixed):
    """Add the softmax of the next segment to that of all segments before it."""
    new = tl.maximum(largest, next_largest)
    pivot = tl.where(new == -float("inf"), 0.0, new)
    kept, added = tl.exp2(largest - pivot), tl.exp2(next_largest - pivot)
    total = tl.fma(total, kept, next_total * added)
    mixed = tl.fma(mixed, kept[:, None], next_mixed * added[:, None])
    return new, total, mixed


@triton.jit
def conclude(
    scratch,
    out,
    row,
    query,
    inside,
    lowest,
    ends,
    from_segment,
    to_segment,
    query_heads,
    segments,
    sums,
    out_stride,
    head_dim: tl.constexpr,
    block_dim: tl.constexpr,
    together: tl.constexpr,
):
    """Merge segments `from_segment` to `to_segment` as programs left them in `scratch`, and store
    the mean, for lanes of a row and a query head each.

    Loads of `together` segments are under way at a time.
    """
    at = tl.arange(0, block_dim)[None, :]
    exists = inside[:, None] & (at < head_dim)
    lane = (row * query_heads + query) * segments
    from_mixed = scratch + lane[:, None] * head_dim + at
    from_largest = scratch + sums * head_dim + lane
    of_all = tl.full(lane.shape, -float("inf"), dtype=tl.float32)
    total = tl.zeros(lane.shape, dtype=tl.float32)
    mixed = tl.zeros((lane.shape[0], block_dim), dtype=tl.float32)
    for first in range(from_segment, to_segment, together):
        found = ()
        for i in tl.static_range(together):
            segment = first + i
            sees = inside & (start_of(segment) < ends) & (start_of(segment + 1) > lowest)
            largest = tl.load(from_largest + segment, mask=sees, other=-float("inf"))
            weight = tl.load(from_largest + sums + segment, mask=sees, other=0.0)
            of_dim = tl.load(
                from_mixed + segment * head_dim, mask=sees[:, None] & exists, other=0.0
            )
            found = found + (largest, weight, of_dim)  # type: ignore[assignment]
        for i in tl.static_range(together):
            of_all, total, mixed = merge(
                of_all, total, mixed, found[3 * i], found[3 * i + 1], found[3 * i + 2]
            )
    put(out, row, query, total, mixed, inside, out_stride, head_dim)


@triton.jit
def put(out, row, query, total, mix, inside, out_stride, head_dim: tl.constexpr):
    """Store the mean. A row that sees nothing is padding, and becomes zero; so does a negative
    zero.
    """
    at = tl.arange(0, mix.shape[1])[None, :]
    mean = mix / tl.where(total > 0, total, 1.0)[:, None] + 0.0
    to = out + row.to(tl.int64)[:, None] * out_stride + query[:, None] * head_dim + at
    exists = inside[:, None] & (at < head_dim)
    tl.store(to, mean.to(out.dtype.element_ty), mask=exists)
