"""RMSNorm, alone and joined with the residual addition before it."""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., h] by weight [h] over its root mean square.

    Computed in fp32, returned in x's dtype. Zhang and Sennrich, arXiv 1910.07467.
    """
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(x.dtype)


def add_rms_norm(x: Tensor, change: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream x + change [R, h], and its norm; x itself is left as it was."""
    x = x + change
    return x, rms_norm(x, weight, eps)
