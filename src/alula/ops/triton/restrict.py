"""A law over a whole vocabulary, restricted to a part of it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.restrict import Restricted
from alula.ops.triton.chunks import best_of

BLOCK = 2048


@triton.jit
def restrict_kernel(logits, ids, choices, probabilities, vocabulary, count, block: tl.constexpr):
    """Program r reads row r once for the best; the part of it is then in the cache."""
    row = tl.program_id(0).to(tl.int64)
    from_logits, to = logits + row * vocabulary, probabilities + row * count
    highest, choice = tl.full((), -float("inf"), tl.float32), tl.full((), 0, tl.int32)
    for start in range(0, vocabulary, block):
        token = start + tl.arange(0, block)
        x = tl.load(from_logits + token, mask=token < vocabulary, other=-float("inf"))
        best, first = best_of(x, token)
        choice = tl.where(best > highest, first, choice)
        highest = tl.maximum(highest, best)
    largest, mass = tl.full((), -float("inf"), tl.float32), tl.full((), 0.0, tl.float32)
    for start in range(0, count, block):
        at = start + tl.arange(0, block)
        token = tl.load(ids + at, mask=at < count, other=0)
        x = tl.load(from_logits + token, mask=at < count, other=-float("inf"))
        before, largest = largest, tl.maximum(largest, tl.max(x, axis=0))
        mass = mass * tl.exp(before - largest) + tl.sum(tl.exp(x - largest))
    for start in range(0, count, block):
        at = start + tl.arange(0, block)
        token = tl.load(ids + at, mask=at < count, other=0)
        x = tl.load(from_logits + token, mask=at < count, other=-float("inf"))
        law = tl.exp(x - largest) / mass
        tl.store(to + at, law.to(probabilities.dtype.element_ty), mask=at < count)
    tl.store(choices + row, choice.to(tl.int64))


def restrict(logits: Tensor, ids: Tensor, dtype: torch.dtype) -> Restricted:
    """See `restrict.restrict`; all tensors are contiguous."""
    (rows, vocabulary), count = logits.shape, len(ids)
    best = torch.empty(rows, dtype=torch.int64, device=logits.device)
    probabilities = torch.empty(rows, count, dtype=dtype, device=logits.device)
    if rows:
        restrict_kernel[(rows,)](
            logits, ids, best, probabilities, vocabulary, count, block=BLOCK, num_warps=8
        )
    return Restricted(best, probabilities)
