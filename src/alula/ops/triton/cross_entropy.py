"""Soft cross-entropy over a vocabulary: a pass for the loss, a pass for the gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.cross_entropy import Compared
from alula.ops.triton.chunks import best_of
from alula.ops.triton.launch import ceil_div

BLOCK = 2048


@triton.jit
def cross_entropy_kernel(
    logits, wanted, entries, losses, totals, choices, vocabulary, block: tl.constexpr
):
    """Program r goes through row r once: the exponentials' sum follows the largest so far."""
    row = tl.program_id(0).to(tl.int64)
    from_logits, from_wanted = (
        logits + row * vocabulary,
        wanted + tl.load(entries + row) * vocabulary,
    )
    largest, choice = tl.full((), -float("inf"), tl.float32), tl.full((), 0, tl.int32)
    mass, agreement = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)
    for start in range(0, vocabulary, block):
        token = start + tl.arange(0, block)
        inside = token < vocabulary
        x = tl.load(from_logits + token, mask=inside, other=-float("inf")).to(tl.float32)
        probability = tl.load(from_wanted + token, mask=inside, other=0.0).to(tl.float32)
        best, first = best_of(x, token)
        choice = tl.where(best > largest, first, choice)
        before, largest = largest, tl.maximum(largest, best)
        mass = mass * tl.exp(before - largest) + tl.sum(tl.exp(x - largest))
        agreement += tl.sum(tl.where(inside, x, 0.0) * probability)
    total = largest + tl.log(mass)
    tl.store(losses + row, total - agreement)
    tl.store(totals + row, total)
    tl.store(choices + row, choice.to(tl.int64))


@triton.jit
def cross_entropy_gradient_kernel(
    logits, wanted, entries, totals, factors, gradient, vocabulary, block: tl.constexpr
):
    """Program (r, i) computes block i of row r."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * block + tl.arange(0, block)
    inside = token < vocabulary
    entry = tl.load(entries + row)
    x = tl.load(logits + row * vocabulary + token, mask=inside, other=0.0).to(tl.float32)
    probability = tl.load(wanted + entry * vocabulary + token, mask=inside, other=0.0)
    change = tl.exp(x - tl.load(totals + row)) - probability.to(tl.float32)
    change *= tl.load(factors + row)
    to = gradient + row * vocabulary + token
    tl.store(to, change.to(gradient.dtype.element_ty), mask=inside)


def cross_entropy(logits: Tensor, wanted: Tensor, entries: Tensor) -> Compared:
    """See `cross_entropy.cross_entropy`; all tensors are contiguous."""
    rows, vocabulary = logits.shape
    losses, totals = (torch.empty(rows, device=logits.device) for _ in range(2))
    choices = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        cross_entropy_kernel[(rows,)](
            *(logits, wanted, entries, losses, totals, choices, vocabulary), block=BLOCK
        )
    return Compared(losses, totals, choices)


def cross_entropy_gradient(
    logits: Tensor, wanted: Tensor, entries: Tensor, total: Tensor, factors: Tensor
) -> Tensor:
    """See `cross_entropy.cross_entropy_gradient`; all tensors are contiguous."""
    rows, vocabulary = logits.shape
    gradient = torch.empty_like(logits)
    if rows:
        cross_entropy_gradient_kernel[(rows, ceil_div(vocabulary, BLOCK))](
            *(logits, wanted, entries, total, factors, gradient, vocabulary), block=BLOCK
        )
    return gradient
