"""The rows of one launch, as data: where each row's keys lie and which of them it sees."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """Positions the model computes in one launch, grouped by sequence (R rows, S sequences).

    A row's keys are visited by logical position. Below `base` they are found through the page
    table; from `base` on through the row's own `tail`, which names its ancestors and itself, so
    that a node of a draft tree reads its own path in path order. Without a tail every sequence's
    rows form a chain and the page table serves up to the row itself.

    The slot of logical position p is `page_table[sequence, p // page_size] * page_size +
    p % page_size`. Rows of a chain are written at the slot of their logical position; node i of a
    draft tree at the slot of logical position `root + i`.
    """

    positions: Tensor
    """[R] int64, rotary position."""
    slots: Tensor
    """[R] int64, slot where the row's key and value are written."""
    sequences: Tensor
    """[R] int64, ascending, line of `page_table` and `base`."""
    last: Tensor
    """[R] int64, logical position of the row's own key (the largest it sees)."""
    page_table: Tensor
    """[S, P] int64."""
    base: Tensor
    """[S] int64, logical positions below it are committed."""
    tail: Tensor | None = None
    """[R, T] int64, slots of logical positions base … last, padded with -1; the rows of a chain
    among trees hold -1 throughout."""
    first: int = 0
    """Lowest logical position that holds a key (a drafter's position 0 holds none)."""
    settled: bool = True
    """Whether all keys below `base` were written before this pass began, so that they may be read
    while its first kernels still run."""
