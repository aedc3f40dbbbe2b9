"""One key of its own for every query, added to an attention that is there already.

An unrolled drafter's query sees the keys of the first step, up to its own place, and one key of
each later step: its own. The former is ordinary causal attention, whose result and log-sum-exp
are all that it takes to add a key.
"""

from __future__ import annotations

from torch import Tensor


def attend_own(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> None:
    """Let q [B, n, heads, d] see k, v [B, n, kv, d] of its own place too; changed in place are:

    `out` [B, n, heads, d], contiguous, what it mixed so far, and `lse` [B, heads, n],
    log(sum(exp(scale * q · key))) over the keys it saw.
    """
    score = _score(q, k, scale)
    after = lse.logaddexp(score)
    _, value = _by_head(q, k, v)
    out.mul_(_of_head(lse - after, out)).add_(value * _of_head(score - after, out))
    lse.copy_(after)


def attend_own_gradient(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    q_gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of k and v, contiguous; that of q is added to `q_gradient`, as q, contiguous.

    `out` and `lse` are those of all keys together; `gradient` is that of `out`.
    """
    kv = k.shape[2]
    key, value = _by_head(q, k, v)
    weight = _of_head(_score(q, k, scale) - lse, q)
    change = (gradient * (value - out)).sum(-1, keepdim=True)
    pull = scale * weight * change
    q_gradient.add_(pull * key)
    grouped = (*q.shape[:2], kv, -1, q.shape[3])
    k_gradient = (pull * q).reshape(grouped).sum(3)
    v_gradient = (weight * gradient).reshape(grouped).sum(3)
    return k_gradient, v_gradient


def _by_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    group = q.shape[2] // k.shape[2]
    return k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)


def _score(q: Tensor, k: Tensor, scale: float) -> Tensor:
    key = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    return (q * key).sum(-1).transpose(1, 2) * scale


def _of_head(log: Tensor, like: Tensor) -> Tensor:
    """exp of [B, heads, n] beside [B, n, heads, d]."""
    return log.exp().transpose(1, 2)[..., None].to(like.dtype)
