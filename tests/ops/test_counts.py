"""Counting tokens."""

from __future__ import annotations

import torch

from alula.ops.counts import add_counts


def test_counting_ignores_padding_and_counts_repeats() -> None:
    counts = torch.zeros(2, 4, dtype=torch.int32)
    add_counts(counts, torch.tensor([1, 0]), torch.tensor([[3, 3, -1], [0, -1, -1]]))
    assert counts.tolist() == [[1, 0, 0, 0], [0, 0, 0, 2]]
