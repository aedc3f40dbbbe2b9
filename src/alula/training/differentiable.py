"""Ops of the floors below with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alula.ops.kernels import kernels_for


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
        losses, total, best = kernels_for(logits.device).cross_entropy(logits, wanted, entries)
        ctx.save_for_backward(logits, wanted, entries, total)
        ctx.mark_non_differentiable(best)
        return losses, best

    @staticmethod
    def backward(ctx: Any, factors: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits, wanted, entries, total = ctx.saved_tensors
        gradient = kernels_for(logits.device).cross_entropy_gradient(
            logits, wanted, entries, total, factors.contiguous()
        )
        return gradient, None, None


def cross_entropy(logits: Tensor, wanted: Tensor, entries: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [R] and likeliest tokens [R] as of `ops.cross_entropy`; logits have a gradient."""
    found: tuple[Tensor, Tensor] = _CrossEntropy.apply(logits, wanted, entries)  # type: ignore[no-untyped-call]
    return found
