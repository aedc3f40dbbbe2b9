"""What a drafter is fed after a dense launch: the features of every position it committed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops.store import Places, places


class Committed(NamedTuple):
    """What a dense launch committed of S sequences, each of them a line of the history."""

    lines: Tensor
    """[S] int64."""
    history: Tensor
    """[L, T] int64, token ids by position, the committed ones among them."""
    page_table: Tensor
    """[S, P] int64."""
    last: Tensor
    """[S] int64, position of the root that the launch computed."""
    path: Tensor
    """[S, A] int64, numbers of the accepted nodes from the root (0) down, -1 after the last."""
    counts: Tensor
    """[S] int64, how many of them were kept."""


class Followed(NamedTuple):
    """R = S * A pairs of a feature and the token behind it.

    First come the S newest, those of the roots' predecessors; then the others, by sequence. What
    a path might have had beyond its count is among them too: it is kept behind the sequence's
    end, to be overwritten before it is read.
    """

    features: Tensor
    """[R, w]"""
    tokens: Tensor
    """[R] int64."""
    positions: Tensor
    """[R] int64, of the features."""
    last: Tensor
    """[R] int64, logical positions of the pairs: those of the tokens."""
    slots: Tensor
    """[R] int64, where their keys and values belong."""
    at: Places


def catch_up(
    aux: tuple[Tensor, ...], committed: Committed, page_features: Tensor, page_size: int
) -> Followed:
    """Gather what a drafter follows, from the target's states of all nodes.

    `aux`: [S * (N + 1), h] each, side by side a feature of w elements. A committed feature that
    ends a page is kept in `page_features` [pages, w], whose last line is no sequence's.
    """
    sequences, steps = committed.path.shape
    number = torch.arange(sequences, device=page_features.device)
    sequence = torch.cat((number, number.repeat_interleave(steps - 1)))
    step = _newest_first(committed.counts, steps)
    node = committed.path[sequence, step].clamp_min(0)
    row = sequence * (len(aux[0]) // sequences) + node
    features = torch.cat([part[row] for part in aux], dim=-1)

    positions = committed.last[sequence] + step
    behind = positions + 1
    end = committed.history.shape[1] - 1
    ends_page = (behind % page_size == 0) & (step < committed.counts[sequence])
    pages = committed.page_table[sequence, positions // page_size]
    page_features[pages.where(ends_page, len(page_features) - 1)] = features
    slots = committed.page_table[sequence, behind // page_size] * page_size + behind % page_size
    return Followed(
        features=features,
        tokens=committed.history[committed.lines[sequence], behind.clamp_max(end)],
        positions=positions,
        last=behind,
        slots=slots,
        at=places(slots, page_size),
    )


def _newest_first(counts: Tensor, steps: int) -> Tensor:
    """Steps [S * A] of S paths: the last that counts of each path, then the others of each."""
    newest = (counts - 1).clamp_min(0)
    other = torch.arange(steps - 1, device=counts.device).expand(len(counts), -1)
    return torch.cat((newest, (other + (other >= newest[:, None])).flatten()))
