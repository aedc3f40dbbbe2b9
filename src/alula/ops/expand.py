"""EAGLE-2's choice of nodes: expand the best frontier level by level, then keep the best of all.

Li et al., arXiv 2406.16858, section 4. A chain is the case of width 1. Of equals the first is
taken: the lower token id, the earlier candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.ops.store import Places, places


class Roots(NamedTuple):
    """S sequences that are drafted for, each a line of what is kept of L of them."""

    lines: Tensor
    """[S] int64."""
    lengths: Tensor
    """[L] int64, known tokens; the last of them is the root."""
    limits: Tensor
    """[L] int64, a sequence of this length has ended and gets no draft."""
    keys: Tensor
    """[L] int64, noise keys."""
    temperatures: Tensor
    """[L] fp32."""
    page_table: Tensor
    """[S, P] int64."""


class Growth(NamedTuple):
    """How trees grow."""

    width: int
    """Children of a node, and nodes of a frontier."""
    target_ids: Tensor
    """[Vd] int64, the drafter's tokens in the target's vocabulary."""
    calibration: float
    """On the perturbed log probabilities that rank nodes at temperatures above 0."""
    noise: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """Keyed noise, of keys [S] and positions [S] for ids [Vd]: `sampling.noise.gumbel`, a floor
    above; a kernel has its own. None: all sequences are at temperature 0."""
    scratch: int
    """Slot from which on a frontier's keys lie while it is expanded, sequence by sequence."""
    room: int
    """Slots that each sequence has there."""
    page_size: int


class Candidates(NamedTuple):
    """All nodes that S trees might have, level by level; candidate i is node number i + 1."""

    tokens: Tensor
    """[S, C] int64, ids in the target's vocabulary."""
    parents: Tensor
    """[S, C] int64, numbers, 0 for the root."""
    scores: Tensor
    """[S, C] fp32, sum of the log probabilities on the path."""


class Frontier(NamedTuple):
    """The nodes of one level whose children come next: F in each of S sequences."""

    sources: Tensor
    """[S * F] int64, rows of the level before, of their parents."""
    tokens: Tensor
    """[S * F] int64, ids in the target's vocabulary."""
    positions: Tensor
    """[S * F] int64, rotary positions of their pairs."""
    last: Tensor
    """[S * F] int64, logical positions of their pairs."""
    at: Places
    """Where the keys of their pairs belong."""
    tail: Tensor
    """[S * F, 1 + level] int64, slots from the root's pair to their own."""
    base: Tensor
    """[S] int64, logical position of the root's pair."""
    numbers: Tensor
    """[S, F] int64, of their candidates."""
    scores: Tensor
    """[S, F] fp32."""


class Drafts(NamedTuple):
    """Where trees are kept, by line, with room for M nodes."""

    tokens: Tensor
    """[L, M] int64, -1 for a node that is not used."""
    parents: Tensor
    """[L, M] int64, node numbers; 0 is the root."""


def candidates(growth: Growth, sequences: int, depth: int) -> Candidates:
    """Room for what `depth` levels find."""
    shape = (sequences, first_of(growth.width, depth + 1))
    tokens = growth.target_ids.new_empty(shape)
    scores = growth.target_ids.new_empty(shape, dtype=torch.float32)
    return Candidates(tokens, torch.empty_like(tokens), scores)


def first_of(width: int, level: int) -> int:
    """The first candidate of a level; the root's children are level 1."""
    return 0 if level == 1 else width + (level - 2) * width**2


def level_of(frontier: Frontier | None) -> int:
    """Of the frontier's children."""
    return 1 if frontier is None else frontier.tail.shape[1]


def grow(
    logits: Tensor, roots: Roots, growth: Growth, found: Candidates, frontier: Frontier | None
) -> Frontier:
    """Add a frontier's children to what was `found`, and make the best of them the next frontier.

    `logits` [S * F, Vd] fp32 are of the frontier's nodes, None meaning the roots.
    """
    sequences, width, level = len(roots.lines), growth.width, level_of(frontier)
    tokens, scores = _add(logits, roots, growth, found, frontier)
    best = _best(scores, width)
    number = torch.arange(sequences, device=best.device)[:, None]
    parents = best // width
    base = roots.lengths[roots.lines] - 1
    own = growth.scratch + number * growth.room + (level - 1) * width
    own = own + torch.arange(width, device=best.device)
    before = _root_slots(roots, base, growth.page_size) if frontier is None else frontier.tail
    before = before.view(sequences, -1, level)
    last = (base + level).repeat_interleave(width)
    return Frontier(
        sources=(number * before.shape[1] + parents).flatten(),
        tokens=tokens.gather(1, best).flatten(),
        positions=last - 1,
        last=last,
        at=places(own.flatten(), growth.page_size),
        tail=torch.cat((before[number, parents], own[..., None]), dim=-1).flatten(0, 1),
        base=base,
        numbers=first_of(width, level) + 1 + best,
        scores=scores.gather(1, best),
    )


def finish(
    logits: Tensor,
    roots: Roots,
    growth: Growth,
    found: Candidates,
    frontier: Frontier | None,
    nodes: int,
    drafts: Drafts,
) -> None:
    """Add the last level to what was `found`, and keep the best `nodes` candidates of all.

    They are numbered level by level and connected: a parent scores no less than its child and
    comes before it, and equal scores keep their order.
    """
    _add(logits, roots, growth, found, frontier)
    chosen = _best(found.scores, nodes).sort(dim=1).values
    number = found.tokens.new_zeros(len(chosen), 1 + found.tokens.shape[1])
    ascending = torch.arange(1, nodes + 1, device=chosen.device).expand_as(chosen)
    number.scatter_(1, chosen + 1, ascending)
    parents = number.gather(1, found.parents.gather(1, chosen))
    keep(roots, drafts, found.tokens.gather(1, chosen), parents)


def keep(roots: Roots, drafts: Drafts, tokens: Tensor, parents: Tensor) -> None:
    """Keep trees of tokens and parents [S, N]; what they leave out is cleared."""
    lines = roots.lines
    ended = (roots.lengths >= roots.limits)[lines]
    left_out = (0, drafts.tokens.shape[1] - tokens.shape[1])
    tokens = tokens.masked_fill(ended[:, None], -1)
    drafts.tokens[lines] = F.pad(tokens, left_out, value=-1)
    drafts.parents[lines] = F.pad(parents, left_out)


def _add(
    logits: Tensor, roots: Roots, growth: Growth, found: Candidates, frontier: Frontier | None
) -> tuple[Tensor, Tensor]:
    """Add one level; its tokens and scores [S, F * width]. No child outscores its parent."""
    level, width = level_of(frontier), growth.width
    tokens, gains = _children(logits, roots, growth, level)
    at = slice(first_of(width, level), first_of(width, level + 1))
    if frontier is None:
        found.parents[:, at] = 0
        found.scores[:, at] = gains.clamp_max(0.0).flatten(1)
    else:
        found.parents[:, at] = frontier.numbers.repeat_interleave(width, dim=1)
        found.scores[:, at] = (frontier.scores[..., None] + gains.clamp_max(0.0)).flatten(1)
    found.tokens[:, at] = tokens.flatten(1)
    return found.tokens[:, at], found.scores[:, at]


def _children(logits: Tensor, roots: Roots, growth: Growth, level: int) -> tuple[Tensor, Tensor]:
    """The best children [S, F, width] of all nodes, and the log of their probabilities.

    At temperature T a node's children are the top of log q / T + g, g being the noise that the
    target's own choice at that position will see (arXiv 2408.07978); at 0, of q. An only child's
    probability ranks nothing and is given as 1.
    """
    lines, ids, width = roots.lines, growth.target_ids, growth.width
    logits = logits.view(len(lines), -1, logits.shape[-1])
    values = logits
    sampled = (roots.temperatures[lines] > 0)[:, None, None]
    if growth.noise is not None:
        temperatures = roots.temperatures[lines, None, None].where(sampled, 1.0)
        noise = growth.noise(roots.keys[lines], roots.lengths[lines] + level - 1, ids)[:, None]
        values = torch.where(sampled, logits / temperatures + noise, logits)
    top, best = _top(values, width)
    if width == 1:
        return ids[best], torch.zeros_like(top)
    gains = top - logits.logsumexp(-1, keepdim=True)
    if growth.noise is not None:
        gains = torch.where(sampled, (top * growth.calibration).log_softmax(-1), gains)
    return ids[best], gains


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values [..., count], in order, and their indices; of equals the first."""
    values, found = values.clone(), []
    for _ in range(count):
        best = values.argmax(-1, keepdim=True)
        found.append((values.gather(-1, best), best))
        values.scatter_(-1, best, -torch.inf)
    return torch.cat([value for value, _ in found], -1), torch.cat([best for _, best in found], -1)


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices [S, count] of the largest, in order; of equals the first."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _root_slots(roots: Roots, base: Tensor, page_size: int) -> Tensor:
    """[S, 1]"""
    pages = roots.page_table.gather(1, (base // page_size)[:, None])
    return pages * page_size + (base % page_size)[:, None]
