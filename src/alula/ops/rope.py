"""Rotary position embedding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The angles of R rows, in fp32; both halves of the last dimension hold the same."""

    cos: Tensor
    """[R, 1, d]"""
    sin: Tensor
    """[R, 1, d], negated in the first half, as `rotate` wants it."""


def rotary_table(frequencies: Tensor, positions: Tensor, scale: float = 1.0) -> Rotation:
    """The rotation of positions [R] for inverse frequencies [d / 2].

    `scale` multiplies cosine and sine (YaRN's attention factor).
    """
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate x [R, heads, d], element i with i + d / 2.

    Su et al., arXiv 2104.09864, in the half-split order that Hugging Face checkpoints use.
    """
    turned = x.roll(x.shape[-1] // 2, dims=-1)
    return (x * rotation.cos).add_(turned * rotation.sin).to(x.dtype)
