"""From one level of draft trees to the next, one program to a sequence."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.expand import Candidates, Frontier, Growth, Roots, first_of, level_of
from alula.ops.store import Places
from alula.ops.triton.candidates import above_of, add, blocks_of
from alula.ops.triton.children import children
from alula.ops.triton.keys import NO_KEY, number_of, value_of
from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.overlap import release, wait


@triton.jit(do_not_specialize=["level", "first", "scratch", "room_slots"])
def grow_kernel(
    best,
    masses,
    lines,
    lengths,
    temperatures,
    page_table,
    target_ids,
    scores_above,
    numbers_above,
    tail_above,
    found_tokens,
    found_parents,
    found_scores,
    sources,
    tokens,
    positions,
    last,
    pages,
    lanes,
    tail,
    base,
    numbers,
    scores,
    level,
    first,
    scratch,
    room_slots,
    room,
    calibration,
    table_stride,
    page_size: tl.constexpr,
    frontier: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
    block_frontier: tl.constexpr,
    block_width: tl.constexpr,
    block_found: tl.constexpr,
    block_level: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Add the children of sequence s's frontier; make the best of them the next."""
    release(overlaps)
    sequence = tl.program_id(0).to(tl.int64)
    wait(overlaps)
    line = tl.load(lines + sequence)
    root = tl.load(lengths + line) - 1
    key, known = add(
        best,
        masses,
        target_ids,
        scores_above,
        numbers_above,
        found_tokens,
        found_parents,
        found_scores,
        sequence,
        first,
        room,
        calibration,
        tl.load(temperatures + line) > 0.0,
        frontier,
        width,
        chunks,
        block_frontier,
        block_width,
        block_found,
    )
    node = tl.arange(0, block_width)
    chosen = tl.full((block_width,), NO_KEY, tl.int64)
    token = tl.zeros((block_width,), tl.int64)
    for number in range(width):
        top = tl.max(tl.max(key, axis=1), axis=0)
        its_token = tl.max(tl.max(tl.where(key == top, known, -1), axis=1), axis=0)
        chosen = tl.where(node == number, top, chosen)
        token = tl.where(node == number, its_token, token)
        key = tl.where(key == top, NO_KEY, key)
    exists = node < width
    at = tl.where(exists, number_of(chosen), 0)

    to = sequence * width + node
    own = scratch + sequence * room_slots + (level - 1) * width + node
    tl.store(sources + to, sequence * frontier + at // width, mask=exists)
    tl.store(tokens + to, token, mask=exists)
    tl.store(positions + to, root + level - 1, mask=exists)
    tl.store(last + to, root + level, mask=exists)
    tl.store(pages + to, own // page_size, mask=exists)
    tl.store(lanes + to, own % page_size, mask=exists)
    tl.store(numbers + to, (first + 1 + at).to(tl.int64), mask=exists)
    tl.store(scores + to, value_of(chosen), mask=exists)
    tl.store(base + sequence, root)

    step = tl.arange(0, block_level)[None, :]
    above = (sequence * frontier + at // width)[:, None] * level + step
    before = exists[:, None] & (step < level)
    if tail_above is not None:
        slot = tl.load(tail_above + above, mask=before, other=0)
    else:
        page = tl.load(page_table + sequence * table_stride + root // page_size)
        slot = tl.zeros((block_width, block_level), tl.int64) + page * page_size + root % page_size
    slot = tl.where(step == level, own[:, None], slot)
    to_tail = tail + to[:, None] * (level + 1) + step
    tl.store(to_tail, slot, mask=exists[:, None] & (step <= level))


def grow(
    logits: Tensor, roots: Roots, growth: Growth, found: Candidates, frontier: Frontier | None
) -> Frontier:
    """See `expand.grow`; in two launches. All is contiguous, or has contiguous lines."""
    sequences, width, level = len(roots.lines), growth.width, level_of(frontier)
    rows = sequences * width
    leaders = children(logits, roots, growth, level)
    integer = roots.lines.new_empty
    grown = Frontier(
        sources=integer(rows),
        tokens=integer(rows),
        positions=integer(rows),
        last=integer(rows),
        at=Places(integer(rows), integer(rows)),
        tail=integer(rows, level + 1),
        base=integer(sequences),
        numbers=integer(sequences, width),
        scores=logits.new_empty(sequences, width),
    )
    *columns, at, tail, base, numbers, scores = grown
    grow_kernel[(sequences,)](
        *(*leaders, roots.lines, roots.lengths, roots.temperatures, roots.page_table),
        *(growth.target_ids, *above_of(frontier), None if frontier is None else frontier.tail),
        *(*found, *columns, *at, tail, base, numbers, scores),
        *(level, first_of(width, level), growth.scratch, growth.room, found.tokens.shape[1]),
        *(growth.calibration, roots.page_table.stride(0)),
        page_size=growth.page_size,
        block_level=power_of_2(level + 1),
        **blocks_of(leaders, sequences),
        **options(logits),
    )
    return grown
