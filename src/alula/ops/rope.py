"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(
    frequencies: Tensor, positions: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [R, 1, d] of positions [R] for inverse frequencies [d / 2], in fp32.

    Both halves of the last dimension hold the same angles; the sine of the first is negated, as
    `rotate` wants it. `scale` multiplies both (YaRN's attention factor).
    """
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [R, heads, d] by cos, sin [R, 1, d] from `rotary_table`, element i with i + d / 2.

    Su et al., arXiv 2104.09864, in the half-split order that Hugging Face checkpoints use.
    """
    turned = x.roll(x.shape[-1] // 2, dims=-1)
    return (x * cos).add_(turned * sin).to(x.dtype)
