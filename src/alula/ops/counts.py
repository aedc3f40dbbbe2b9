"""How often tokens occur."""

from __future__ import annotations

from torch import Tensor


def add_counts(counts: Tensor, lines: Tensor, tokens: Tensor) -> None:
    """Add 1 to counts [S, V] int32 for each of `tokens` [R, A] in line `lines` [R], in place.

    -1 counts nothing. Sums of integers are exact in any order, so this needs no fixed one.
    """
    places = lines[:, None] * counts.shape[1] + tokens.clamp(min=0)
    counts.view(-1).scatter_add_(0, places.flatten(), (tokens >= 0).int().flatten())
