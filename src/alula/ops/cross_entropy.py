"""Soft cross-entropy of many rows over a vocabulary, and its gradient in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Compared(NamedTuple):
    """What R rows of logits come to against what was wanted."""

    losses: Tensor
    """[R], -sum(wanted * log_softmax(logits)); fp32, or fp64 for logits in fp64."""
    total: Tensor
    """[R], log(sum(exp(logits))), as `losses`."""
    best: Tensor
    """[R] int64, the likeliest token."""


def cross_entropy(logits: Tensor, wanted: Tensor, entries: Tensor) -> Compared:
    """Compare logits [R, V] with probabilities: row r with entry `entries[r]` of wanted [M, V].

    A row of `wanted` adds up to 1, so that the loss is log(sum(exp(logits))) - wanted · logits.
    """
    wide = _wide(logits)
    total = wide.logsumexp(-1)
    losses = total - (wanted[entries].to(wide.dtype) * wide).sum(-1)
    return Compared(losses, total, wide.argmax(-1))


def cross_entropy_gradient(
    logits: Tensor, wanted: Tensor, entries: Tensor, total: Tensor, factors: Tensor
) -> Tensor:
    """The gradient of sum(factors * losses), [R, V] in the dtype of the logits.

    `factors` [R]; the rest as `cross_entropy` takes and gives it. It is, by row,
    factor * (softmax(logits) - wanted).
    """
    wide = _wide(logits)
    law = (wide - total[:, None]).exp_()
    return law.sub_(wanted[entries]).mul_(factors[:, None]).to(logits.dtype)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
