"""RMSNorm, alone and joined with the residual addition before it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Norm(NamedTuple):
    """An RMSNorm over h elements."""

    weight: Tensor
    """[h] fp32."""
    eps: float


class Normed(NamedTuple):
    """Rows under an RMSNorm, wholly or but for the division by their root mean square."""

    values: Tensor
    """[R, h]"""
    squares: Tensor | None = None
    """[R] int64, sums of squares by which `values` are still to be divided; None if they are."""
    eps: float = 0.0

    def of(self, rows: Tensor | slice) -> Normed:
        """Some of the rows."""
        squares = None if self.squares is None else self.squares[rows]
        return Normed(self.values[rows], squares, self.eps)


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
