"""The last level of draft trees, and the choice of their nodes, one program to a sequence."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.expand import Candidates, Drafts, Frontier, Growth, Roots, first_of, level_of
from alula.ops.triton.candidates import above_of, add, blocks_of
from alula.ops.triton.children import children
from alula.ops.triton.keys import NO_KEY, key_of
from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.overlap import release, wait


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
    add(
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
        *(growth.target_ids, *above_of(frontier), *found, *drafts),
        *(first_of(growth.width, level), nodes, room, growth.calibration, drafted),
        *(drafts.tokens.stride(0), drafts.parents.stride(0)),
        block_room=power_of_2(room),
        block_drafted=power_of_2(drafted),
        **blocks_of(leaders, sequences),
        **options(logits),
    )
