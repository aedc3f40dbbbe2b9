"""The end of a round: what its sequences emit, and where they stand then."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops.counts import add_counts
from alula.ops.lines import LineState
from alula.ops.walk import Path, walk


class Emission(NamedTuple):
    """What S sequences emit in one launch, cut at stops and limits."""

    tokens: Tensor
    """[S, A] int64, -1 after the last."""
    counts: Tensor
    """[S] int64."""
    stopped: Tensor
    """[S] bool, the last token is a stop token."""
    full: Tensor
    """[S] bool, the sequence has reached its limit."""


class Mailbox(NamedTuple):
    """Where a captured round leaves what the host wants to know of S sequences.

    The host reads it where it is, with no copy that the next round would wait for. There is room
    for two rounds by turns, since the next one may run while the host still reads this one's.
    """

    columns: Tensor
    """[2, S, 6 + A] int64, on the host; pinned where the rest is on a GPU, which writes them."""
    rounds: Tensor
    """[S] int64, on the device: rounds of each so far. Columns go where their number is even or
    odd."""


class Advanced(NamedTuple):
    """What came of S sequences."""

    path: Path
    emission: Emission
    columns: Tensor | None
    """[S, 6 + A] int64, what the host wants to know in one piece: used nodes, their deepest level,
    stopped, full, length of the path, emitted tokens, and these tokens. None where they have gone
    into a mailbox."""


def advance(
    at: Tensor,
    state: LineState,
    choice: Tensor,
    tokens: Tensor,
    parents: Tensor,
    drafted: Tensor,
    mailbox: Mailbox | None = None,
) -> Advanced:
    """Walk the drafts `tokens`, `parents` [S, N] of the lines `at` [S], and settle what is found.

    `choice` [S * (N + 1)] int64 is the target's own token after every node; `drafted` [S, 2] as
    `prepare` gives it.
    """
    path = walk(tokens, parents, choice.view(len(at), -1))
    return settle(at, state, path, drafted, mailbox)


def settle(
    at: Tensor, state: LineState, path: Path, drafted: Tensor, mailbox: Mailbox | None = None
) -> Advanced:
    """Cut a path behind the first stop and at the limit; advance histories, lengths and counts.

    A line that has stopped is at its limit from then on: it emits no more, though the host may
    launch it again before it knows. Lines differ from each other, or are at their limit.
    """
    emission = _cut(at, state, path)
    _append(at, state, emission)
    told = (emission.stopped, emission.full, path.length, emission.counts)
    columns = torch.cat((drafted, torch.stack(told, dim=1), emission.tokens), dim=1)
    if mailbox is None:
        return Advanced(path, emission, columns)
    mailbox.columns[mailbox.rounds % 2, torch.arange(len(at))] = columns
    mailbox.rounds.add_(1)
    return Advanced(path, emission, None)


def _cut(at: Tensor, state: LineState, path: Path) -> Emission:
    tokens, counts = path.tokens, path.length
    step = torch.arange(tokens.shape[1], device=at.device)
    stops = (tokens[:, :, None] == state.stop_ids[at][:, None, :]).any(dim=2)
    stops &= step < counts[:, None]
    before_stop = torch.where(stops, step + 1, tokens.shape[1] + 1).amin(dim=1)
    room = state.limits[at] - state.lengths[at]
    kept = torch.minimum(torch.minimum(counts, before_stop), room)
    return Emission(
        torch.where(step < kept[:, None], tokens, -1),
        kept,
        stopped=before_stop <= kept,
        full=kept >= room,
    )


def _append(at: Tensor, state: LineState, emission: Emission) -> None:
    step = torch.arange(emission.tokens.shape[1], device=at.device)
    # No token belongs in the last column of a history: there goes what is not emitted.
    end = state.history.shape[1] - 1
    places = (state.lengths[at, None] + step).where(emission.tokens >= 0, end)
    state.history[at[:, None], places] = emission.tokens.clamp_min(0)
    lengths = state.lengths[at] + emission.counts
    state.lengths[at] = lengths
    state.limits[at] = torch.where(emission.stopped, lengths, state.limits[at])
    if state.output_counts is not None:
        add_counts(state.output_counts, at, emission.tokens)
