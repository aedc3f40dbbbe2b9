"""EAGLE-2's choice of nodes, one program to a sequence."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.expand import Candidates, Drafts, Frontier, Growth, Roots, first_of, level_of
from alula.ops.store import Places
from alula.ops.triton.children import (
    NO_KEY,
    Found,
    children,
    key_of,
    number_of,
    put_together,
    value_of,
)
from alula.ops.triton.overlap import dependent, release, wait

_VALUES_PER_WARP = 256


@triton.jit
def _add(
    best,
    masses,
    target_ids,
    scores_above,
    numbers_above,
    tokens,
    parents,
    scores,
    sequence,
    first,
    room,
    calibration,
    is_sampled,
    frontier: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
    block_frontier: tl.constexpr,
    block_width: tl.constexpr,
    block_found: tl.constexpr,
):
    """Add the frontier's children to the candidates.

    Their scores as keys by place in the level, and their tokens: [block_frontier, block_width].
    """
    key, gains = put_together(
        best,
        masses,
        sequence * frontier,
        calibration,
        is_sampled,
        frontier,
        width,
        chunks,
        block_frontier,
        block_width,
        block_found,
    )
    node, child = tl.arange(0, block_frontier)[:, None], tl.arange(0, block_width)[None, :]
    exists = (node < frontier) & (child < width)
    at = node * width + child
    score, parent = gains, tl.zeros((block_frontier, 1), tl.int64)
    if scores_above is not None:
        of_node = sequence * frontier + node
        score += tl.load(scores_above + of_node, mask=node < frontier, other=0.0)
        parent = tl.load(numbers_above + of_node, mask=node < frontier, other=0)
    to = sequence * room + first + at
    token = tl.load(target_ids + number_of(key), mask=exists, other=0)
    tl.store(tokens + to, token, mask=exists)
    tl.store(parents + to, parent, mask=exists)
    tl.store(scores + to, score, mask=exists)
    return tl.where(exists, key_of(score, at), NO_KEY), token


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
    key, known = _add(
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


@triton.jit(do_not_specialize=["first", "nodes"])
def finish_kernel(
    best,
    masses,
    lines,
    lengths,
    limits,
    temperatures,
    target_ids,
    scores_above,
    numbers_above,
    found_tokens,
    found_parents,
    found_scores,
    drafted_tokens,
    drafted_parents,
    first,
    nodes,
    room,
    calibration,
    drafted,
    tokens_stride,
    parents_stride,
    frontier: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
    block_frontier: tl.constexpr,
    block_width: tl.constexpr,
    block_found: tl.constexpr,
    block_room: tl.constexpr,
    block_drafted: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Add the last level of sequence s, and keep the best `nodes` candidates, renumbered.

    Of a chain these are all.
    """
    release(overlaps)
    sequence = tl.program_id(0).to(tl.int64)
    wait(overlaps)
    line = tl.load(lines + sequence)
    _add(
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
    # What other threads have just stored is read.
    tl.debug_barrier()
    at = tl.arange(0, block_room)
    is_chosen = at < room
    token = tl.load(found_tokens + sequence * room + at, mask=is_chosen, other=-1)
    rank, parent = at + 1, at
    if width > 1:
        score = tl.load(found_scores + sequence * room + at, mask=is_chosen, other=0.0)
        above = tl.load(found_parents + sequence * room + at, mask=is_chosen, other=0).to(tl.int32)
        key = tl.where(is_chosen, key_of(score, at), NO_KEY)
        least = tl.max(tl.where(at == nodes - 1, tl.sort(key, descending=True), NO_KEY), axis=0)
        is_chosen &= key >= least
        rank = tl.cumsum(is_chosen.to(tl.int32), axis=0)
        parent = tl.where(above > 0, tl.gather(rank, tl.maximum(above - 1, 0), 0), 0)
    has_ended = tl.load(lengths + line) >= tl.load(limits + line)
    token = tl.where(has_ended, -1, token)
    to = rank - 1
    tl.store(drafted_tokens + line * tokens_stride + to, token, mask=is_chosen)
    tl.store(drafted_parents + line * parents_stride + to, parent.to(tl.int64), mask=is_chosen)
    place = tl.arange(0, block_drafted)
    left_out = (place >= nodes) & (place < drafted)
    nothing = tl.zeros((block_drafted,), tl.int64)
    tl.store(drafted_tokens + line * tokens_stride + place, nothing - 1, mask=left_out)
    tl.store(drafted_parents + line * parents_stride + place, nothing, mask=left_out)


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
        *(growth.target_ids, *_above(frontier), None if frontier is None else frontier.tail),
        *(*found, *columns, *at, tail, base, numbers, scores),
        *(level, first_of(width, level), growth.scratch, growth.room, found.tokens.shape[1]),
        *(growth.calibration, roots.page_table.stride(0)),
        page_size=growth.page_size,
        block_level=triton.next_power_of_2(level + 1),
        **_blocks(leaders, sequences),
        **dependent(logits),
    )
    return grown


def finish(
    logits: Tensor,
    roots: Roots,
    growth: Growth,
    found: Candidates,
    frontier: Frontier | None,
    nodes: int,
    drafts: Drafts,
) -> None:
    """See `expand.finish`; in two launches."""
    sequences, level = len(roots.lines), level_of(frontier)
    leaders = children(logits, roots, growth, level)
    room, drafted = found.tokens.shape[1], drafts.tokens.shape[1]
    finish_kernel[(sequences,)](
        *(*leaders, roots.lines, roots.lengths, roots.limits, roots.temperatures),
        *(growth.target_ids, *_above(frontier), *found, *drafts),
        *(first_of(growth.width, level), nodes, room, growth.calibration, drafted),
        *(drafts.tokens.stride(0), drafts.parents.stride(0)),
        block_room=triton.next_power_of_2(room),
        block_drafted=triton.next_power_of_2(drafted),
        **_blocks(leaders, sequences),
        **dependent(logits),
    )


def _above(frontier: Frontier | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if frontier is None else (frontier.scores, frontier.numbers)


def _blocks(leaders: Found, sequences: int) -> dict[str, Any]:
    """What a program of one sequence is compiled for."""
    rows, chunks, width = leaders.best.shape
    frontier = rows // sequences
    block_frontier = triton.next_power_of_2(frontier)
    block_found = triton.next_power_of_2(chunks * width)
    return {
        "frontier": frontier,
        "width": width,
        "chunks": chunks,
        "block_frontier": block_frontier,
        "block_width": triton.next_power_of_2(width),
        "block_found": block_found,
        "num_warps": min(max(block_frontier * block_found // _VALUES_PER_WARP, 1), 8),
    }
