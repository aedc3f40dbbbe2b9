"""What turns a target's logits into the law that is sampled: penalties, temperature, filters.

The order is penalties, bias, temperature, top_k, top_p, min_p. All of it is fp32 but for the
masses that top_p adds up: those are integers, whose sums have no order, so that a search for the
border may add them as it likes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops import exact


class Penalties(NamedTuple):
    """What R rows ask for, [R, 1] fp32 each."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor


class Filters(NamedTuple):
    """What R rows ask for, [R, 1] each."""

    top_k: Tensor
    """int64, the vocabulary's size where off."""
    top_p: Tensor
    """fp32."""
    log_min_p: Tensor
    """fp32, -inf where off."""


class Candidates(NamedTuple):
    """Tokens of R rows from the likeliest down, equal ones by ascending id, [R, n] each."""

    ids: Tensor
    """int64."""
    scaled: Tensor
    """fp32, as `scale` gives them."""


def penalise(logits: Tensor, seen: Tensor, counts: Tensor, penalties: Penalties) -> Tensor:
    """Logits [R, V] after the penalties for what came before each row.

    `seen` [R, V] bool: in the prompt; `counts` [R, V] int32: occurrences in the output, a
    drafted path included. Repetition as in Hugging Face transformers (over prompt and output),
    presence and frequency as in OpenAI's API (over the output). A row that asks for none keeps
    its logits to the bit.
    """
    present = counts > 0
    weaker = torch.where(logits > 0, logits / penalties.repetition, logits * penalties.repetition)
    logits = torch.where(present | seen, weaker, logits)
    return logits - (penalties.frequency * counts + penalties.presence * present)


def scale(logits: Tensor, temperature: Tensor) -> Tensor:
    """(logits - the row's largest) / temperature, [R, V]: log-probabilities up to a constant.

    Taking the largest away first keeps fp32's precision where the mass is. `temperature` [R, 1]
    is above 0. A row without a finite largest logit becomes NaN somewhere.
    """
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(temperature)


def total_mass(scaled: Tensor) -> Tensor:
    """Sum over the vocabulary of exp(scaled), [R, 1] int64 in units of 2^-44.

    Integers have one sum, in any order: that of this form and of every other.
    """
    return exact.mass(scaled).sum(dim=-1, keepdim=True)


def needed_mass(total: Tensor, top_p: Tensor) -> Tensor:
    """The mass that top_p asks for of `total`, both [R, 1]: int64, rounded up."""
    needed = (top_p.double() * total.double()).ceil().long()
    return torch.minimum(needed, total)


def ranked(scaled: Tensor) -> Candidates:
    """The whole vocabulary as candidates."""
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    return Candidates(ids, values)


def ranked_above(scaled: Tensor, floor: float) -> Candidates:
    """Of one row [1, V], the candidates not below `floor`: the head of what `ranked` gives."""
    ids = (scaled[0] >= floor).nonzero()[:, 0]
    values, order = scaled[0, ids].sort(descending=True, stable=True)
    return Candidates(ids[order][None], values[None])


def kept(candidates: Candidates, total: Tensor, filters: Filters, vocabulary: int) -> Tensor:
    """Which candidates pass the filters, [R, n] bool: a head of each row.

    top_k keeps exactly k, of equal ones at the border the lowest ids. top_p keeps a token while
    the mass of those ranked before it is below top_p, of what top_k left. min_p compares with the
    likeliest. `total` [R, 1] is the mass of the whole vocabulary. Where a row is cut short of its
    vocabulary (`ranked_above`), its first k must be there if top_k is on.
    """
    count = candidates.ids.shape[1]
    mass = exact.mass(candidates.scaled).cumsum(dim=-1)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    last_of_k = filters.top_k.clamp(max=count) - 1
    total = torch.where(filters.top_k < vocabulary, mass.gather(1, last_of_k), total)
    in_k = torch.arange(count, device=mass.device) < filters.top_k
    in_p = (before < needed_mass(total, filters.top_p)) | (filters.top_p >= 1.0)
    return in_k & in_p & (candidates.scaled >= filters.log_min_p)
