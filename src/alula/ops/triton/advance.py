"""The end of a round in one launch, one program to a sequence."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.advance import Advanced, Emission, Mailbox
from alula.ops.lines import LineState
from alula.ops.sample import Found
from alula.ops.triton.chunks import is_finite
from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.overlap import release, wait
from alula.ops.walk import Path

_NO_ID = tl.constexpr(2**31 - 1)
_NO_TOKEN = tl.constexpr(-2)
"""What no stop id is, and no choice."""
_VALUES_PER_WARP = 512


@triton.jit
def _best(values, ids, row, inside, chunks, block_chunks: tl.constexpr):
    """The largest value that the chunks of each row found, and the lowest id that has it."""
    chunk = tl.arange(0, block_chunks)[None, :]
    at = row[:, None] * chunks + chunk
    inside = inside[:, None] & (chunk < chunks)
    value = tl.load(values + at, mask=inside, other=-float("inf"))
    best = tl.max(value, axis=1)
    here = tl.load(ids + at, mask=inside, other=_NO_ID)
    return best, tl.min(tl.where(value == best[:, None], here, _NO_ID), axis=1)


@triton.jit
def _choose(
    temperature, line, best_values, best_ids, drawn_values, drawn_ids, row, inside, chunks,
    draws: tl.constexpr, block_chunks: tl.constexpr,
):  # fmt: skip
    """The choice of each row; -1 where no largest logit exists."""
    best, token = _best(best_values, best_ids, row, inside, chunks, block_chunks)
    exists = is_finite(best)
    if draws:
        warmth = tl.load(temperature + line)
        if warmth > 0.0:
            # Of a row without a largest logit nothing has been drawn.
            inside &= exists
            best, token = _best(drawn_values, drawn_ids, row, inside, chunks, block_chunks)
            exists = inside & is_finite(best)
    return tl.where(exists, token, -1).to(tl.int64)


@triton.jit(do_not_specialize=["nodes", "history_width", "stops", "chunks"])
def advance_kernel(
    at,
    history,
    lengths,
    limits,
    stop_ids,
    output_counts,
    choice,
    temperature,
    best_values,
    best_ids,
    drawn_values,
    drawn_ids,
    tokens,
    parents,
    drafted,
    path,
    found,
    length,
    emitted,
    counts,
    stopped,
    full,
    columns,
    rounds,
    nodes,
    history_width,
    stops,
    vocabulary,
    chunks,
    walks: tl.constexpr,
    draws: tl.constexpr,
    has_choice: tl.constexpr,
    has_counts: tl.constexpr,
    by_turns: tl.constexpr,
    block: tl.constexpr,
    block_stops: tl.constexpr,
    block_chunks: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program s walks down the draft of sequence s, where it `walks`, and settles what is found.

    Of equal siblings the walk takes the first.
    """
    release(overlaps)
    sequence = tl.program_id(0).to(tl.int64)
    step = tl.arange(0, block)
    inside = step <= nodes
    to = sequence * (nodes + 1) + step
    wait(overlaps)

    # What waits for nothing is read first, then what waits for the line.
    line = tl.load(at + sequence)
    used, deepest = tl.load(drafted + sequence * 2), tl.load(drafted + sequence * 2 + 1)
    if walks:
        token = tl.load(tokens + sequence * nodes + step, mask=step < nodes, other=-1)
        parent = tl.load(parents + sequence * nodes + step, mask=step < nodes, other=-1)
    known, limit = tl.load(lengths + line), tl.load(limits + line)
    at_stop = tl.arange(0, block_stops)
    stop = tl.load(stop_ids + line * stops + at_stop, mask=at_stop < stops, other=_NO_TOKEN)
    if walks:
        if has_choice:
            chosen = tl.load(choice + to, mask=inside, other=-1)
        else:
            chosen = _choose(
                temperature, line, best_values, best_ids, drawn_values, drawn_ids,
                to, inside, chunks, draws, block_chunks,
            )  # fmt: skip
        way = tl.full((block,), -1, tl.int64)
        word = tl.full((block,), -1, tl.int64)
        here = tl.zeros((), tl.int64)
        count = tl.zeros((), tl.int64)
        while here >= 0:
            own = tl.sum(tl.where(step == here, chosen, 0), axis=0)
            way = tl.where(step == count, here, way)
            word = tl.where(step == count, own, word)
            count += 1
            follows = (parent == here) & (token == own) & (token >= 0)
            first = tl.min(tl.where(follows, step, block), axis=0)
            here = tl.where(first < block, first + 1, -1).to(tl.int64)
        tl.store(path + to, way, mask=inside)
        tl.store(found + to, word, mask=inside)
        tl.store(length + sequence, count)
    else:
        word = tl.load(found + to, mask=inside, other=-1)
        count = tl.load(length + sequence)

    hits = tl.max((word[:, None] == stop[None, :]).to(tl.int32), axis=1)
    ends = tl.where((hits > 0) & (step < count), step + 1, nodes + 2)
    before_stop = tl.min(ends, axis=0).to(tl.int64)
    room = limit - known
    kept = tl.minimum(tl.minimum(count, before_stop), room)
    is_stopped, is_full = before_stop <= kept, kept >= room
    word = tl.where(step < kept, word, -1)

    tl.store(emitted + to, word, mask=inside)
    tl.store(counts + sequence, kept)
    tl.store(stopped + sequence, is_stopped)
    tl.store(full + sequence, is_full)
    columns += sequence * (nodes + 7)
    if by_turns:
        turn = tl.load(rounds + sequence)
        columns += turn % 2 * tl.num_programs(0) * (nodes + 7)
    tl.store(columns, used)
    tl.store(columns + 1, deepest)
    tl.store(columns + 2, is_stopped.to(tl.int64))
    tl.store(columns + 3, is_full.to(tl.int64))
    tl.store(columns + 4, count)
    tl.store(columns + 5, kept)
    tl.store(columns + 6 + step, word, mask=inside)

    # What a line was is read by all threads before one of them changes it.
    times = tl.zeros((block,), tl.int32)
    before = tl.zeros((block,), tl.int32)
    if has_counts:
        output_counts += line * vocabulary
        for number in range(kept):
            one = tl.sum(tl.where(step == number, word, 0), axis=0)
            times += (word == one).to(tl.int32)
        before = tl.load(output_counts + word, mask=word >= 0, other=0)
    tl.debug_barrier()
    if by_turns:
        tl.store(rounds + sequence, turn + 1)
    if has_counts:
        tl.store(output_counts + word, before + times, mask=word >= 0)
    tl.store(history + line * history_width + known + step, word, mask=word >= 0)
    tl.store(lengths + line, known + kept)
    tl.store(limits + line, tl.where(is_stopped, known + kept, limit))


def advance(
    at: Tensor,
    state: LineState,
    choice: Tensor | Found,
    tokens: Tensor,
    parents: Tensor,
    drafted: Tensor,
    mailbox: Mailbox | None = None,
) -> Advanced:
    """See `advance.advance`; all are contiguous. The choice may be what `find` left."""
    sequences, nodes = tokens.shape
    rows, words = (_integers(at, sequences, nodes + 1) for _ in range(2))
    path = Path(rows, words, _integers(at, sequences))
    return _launch(at, state, choice, (tokens, parents), path, drafted, mailbox)


def settle(
    at: Tensor, state: LineState, path: Path, drafted: Tensor, mailbox: Mailbox | None = None
) -> Advanced:
    """See `advance.settle`; all are contiguous."""
    return _launch(at, state, None, (None, None), path, drafted, mailbox)


def _launch(
    at: Tensor,
    state: LineState,
    choice: Tensor | Found | None,
    tree: tuple[Tensor, Tensor] | tuple[None, None],
    path: Path,
    drafted: Tensor,
    mailbox: Mailbox | None,
) -> Advanced:
    sequences, steps = path.tokens.shape
    emission = Emission(
        _integers(at, sequences, steps),
        _integers(at, sequences),
        *(torch.empty(sequences, dtype=torch.bool, device=at.device) for _ in range(2)),
    )
    columns = None if mailbox else _integers(at, sequences, 6 + steps)
    left = choice if isinstance(choice, Found) else Found()
    chunks = 1 if left.best_values is None else left.best_values.shape[1]
    block, block_chunks = power_of_2(steps), power_of_2(chunks)
    counts, stops = state.output_counts, state.stop_ids.shape[1]
    advance_kernel[(sequences,)](
        *(at, state.history, state.lengths, state.limits, state.stop_ids, counts),
        *(choice if isinstance(choice, Tensor) else None, *left, *tree, drafted),
        *(*path, *emission, *(mailbox or (columns, None))),
        *(steps - 1, state.history.shape[1], stops, 0 if counts is None else counts.shape[1]),
        chunks,
        walks=choice is not None,
        draws=left.drawn_values is not None,
        has_choice=isinstance(choice, Tensor),
        has_counts=counts is not None,
        by_turns=mailbox is not None,
        block=block,
        block_stops=power_of_2(stops),
        block_chunks=block_chunks,
        num_warps=min(max(block * block_chunks // _VALUES_PER_WARP, 1), 8),
        **options(at),
    )
    return Advanced(path, emission, columns)


def _integers(at: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=at.device)
