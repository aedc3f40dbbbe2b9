"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(
    frequencies: Tensor, positions: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [R, d] of positions [R] for inverse frequencies [d / 2], in fp32.

    The two halves of the last dimension repeat, as `rotate` expects. `scale` multiplies both
    (YaRN's attention factor).
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [R, heads, d] by cos, sin [R, d], pairing element i with i + d / 2.

    Su et al., arXiv 2104.09864, in the half-split order that Hugging Face checkpoints use.
    """
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos[:, None] + turned * sin[:, None]).to(x.dtype)
