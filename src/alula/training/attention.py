"""What the unrolled steps of a drafter see of each other, differentiable.

A query of pair t sees the first step's keys up to t, and of every later step only its own. The
first part is causal attention as any flash kernel has it, together with its log-sum-exp; the other
keys are added to that (`ops.own_key`). Backwards the same kernel, handed the result and the
log-sum-exp of all keys, gives exactly the first part's share of the gradients, since it derives
every weight from the log-sum-exp and every change from the result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from alula.ops.kernels import kernels_for

_aten = torch.ops.aten
_LARGEST_HEAD = 256  # of flash attention on a GPU, in steps of 8


class Memory:
    """Keys and values of all steps so far."""

    def __init__(self) -> None:
        self._first: tuple[Tensor, ...] = ()
        self._own: tuple[Tensor, ...] = ()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Add k, v [B, n, kv, d]; mix values for q [B, n, heads, d], as q."""
        if self._first:
            self._own += (k, v)
        else:
            self._first = (k, v)
        mixed: Tensor = _Attention.apply(q, *self._first, *self._own)  # type: ignore[no-untyped-call]
        return mixed


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *own: Tensor) -> Tensor:
        scale = q.shape[-1] ** -0.5
        out, lse, rest = causal(q, k, v, scale)
        for key, value in zip(own[::2], own[1::2], strict=True):
            kernels_for(q.device).attend_own(q, key, value, out, lse, scale)
        ctx.save_for_backward(q, k, v, out, lse, *own)
        ctx.rest = rest
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        q, k, v, out, lse, *own = ctx.saved_tensors
        scale, gradient = q.shape[-1] ** -0.5, gradient.contiguous()
        of_q, of_k, of_v = causal_gradient(gradient, q, k, v, out, lse, scale, ctx.rest)
        of_own: list[Tensor] = []
        for key, value in zip(own[::2], own[1::2], strict=True):
            of_own += kernels_for(q.device).attend_own_gradient(
                gradient, q, key, value, out, lse, scale, of_q
            )
        return of_q, of_k, of_v, *of_own


def causal(
    q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, tuple[Any, ...] | None]:
    """What q [B, n, heads, d] mixes of k, v [B, n, kv, d] up to its own, as q, contiguous.

    Also the log-sum-exp [B, heads, n], and what `causal_gradient` is to be handed.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if not _has_flash(q):
        return *_plain(q, k, v, scale), None
    if q.is_cuda:
        flash = _aten._scaled_dot_product_flash_attention
        out, lse, *rest, _ = flash(q, k, v, 0.0, True, scale=scale)
    else:
        flash = _aten._scaled_dot_product_flash_attention_for_cpu
        out, lse, *rest = flash(q, k, v, 0.0, True, scale=scale)
    return out.transpose(1, 2).contiguous(), lse.contiguous(), tuple(rest)


def causal_gradient(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    rest: tuple[Any, ...] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v by way of these keys, contiguous.

    `out` and `lse` may be those of more keys than `k`.
    """
    asked, q, k, v, out = (x.transpose(1, 2) for x in (gradient, q, k, v, out))
    if rest is None:
        found = _plain_gradient(asked, q, k, v, out, lse, scale)
    elif q.is_cuda:
        lengths, places = rest[:4], rest[4:]
        flash = _aten._scaled_dot_product_flash_attention_backward
        found = flash(asked, q, k, v, out, lse, *lengths, 0.0, True, *places, scale=scale)
    else:
        flash = _aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = flash(asked, q, k, v, out, lse, 0.0, True, scale=scale)
    of_q, of_k, of_v = (x.transpose(1, 2).contiguous() for x in found)
    return of_q, of_k, of_v


def _has_flash(q: Tensor) -> bool:
    """On the CPU for all dtypes."""
    if not q.is_cuda:
        return True
    d = q.shape[-1]
    return q.dtype in (torch.bfloat16, torch.float16) and d % 8 == 0 and d <= _LARGEST_HEAD


def _plain(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, scale)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().to(v.dtype)
    return (weights @ _repeated(v, q)).transpose(1, 2).contiguous(), lse


def _plain_gradient(
    asked: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (_scores(q, k, scale) - lse[..., None]).exp().to(q.dtype)
    change = asked @ _repeated(v, q).mT - (asked * out).sum(-1, keepdim=True)
    pull = scale * weights * change

    def together(x: Tensor) -> Tensor:
        return x.view(len(x), k.shape[1], -1, *x.shape[2:]).sum(2)

    return pull @ _repeated(k, q), together(pull.mT @ q), together(weights.mT @ asked)


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """[B, heads, n, n], at least fp32."""
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ _repeated(k, q).mT) * scale
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return wide.masked_fill(future, -math.inf)


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)
