"""Ops of the floors below with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alula.ops.attention import Heads
from alula.ops.kernels import kernels_for
from alula.ops.rope import Rotation


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


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, cos: Tensor, sin: Tensor, heads: Heads
    ) -> tuple[Tensor, Tensor, Tensor]:
        both = heads.query + heads.kv
        kernels = kernels_for(projected.device)
        turned = kernels.rotate(projected[:, :both], Rotation(cos, sin))
        ctx.save_for_backward(cos, sin)
        return turned[:, : heads.query], turned[:, heads.query :], projected[:, both:].clone()

    @staticmethod
    def backward(ctx: Any, of_q: Tensor, of_k: Tensor, of_v: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        turned = torch.cat((of_q, of_k), dim=1)
        back = kernels_for(turned.device).rotate(turned, Rotation(cos, -sin))
        return torch.cat((back, of_v), dim=1), None, None, None


def rotated_heads(
    projected: Tensor, rotation: Rotation, heads: Heads
) -> tuple[Tensor, Tensor, Tensor]:
    """Split projected [R, query + 2 kv, d] into queries, keys and values [R, heads, d].

    Queries and keys are rotated. The gradient of a rotation is the one back.
    """
    found: tuple[Tensor, Tensor, Tensor] = _Heads.apply(projected, *rotation, heads)  # type: ignore[no-untyped-call]
    return found


class _SiluAndMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return kernels_for(gate_up.device).silu_and_mul(gate_up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return kernels_for(gate_up.device).silu_and_mul_gradient(gate_up, gradient.contiguous())


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """As `ops.activation.silu_and_mul`, [R, 2 * f] to [R, f]."""
    inner: Tensor = _SiluAndMul.apply(gate_up)  # type: ignore[no-untyped-call]
    return inner
