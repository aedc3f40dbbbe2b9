"""RMSNorm."""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale x [..., h] by weight [h] over its root mean square.

    Computed in fp32, returned in x's dtype. Zhang and Sennrich, arXiv 1910.07467.
    """
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(x.dtype)
