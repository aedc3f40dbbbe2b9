"""The target features that each page keeps of its last position.

A drafter's pair (feature t, token t + 1) lies in the slot of t + 1. The first pair behind a
reused page therefore needs the feature of the page's last position, which no launch computes
again.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PageFeatures:
    """One feature vector a page, written as positions are committed; the last page is no
    sequence's.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self._pages = pages
        self._page_size = page_size
        self._store: Tensor | None = None

    def keep(self, values: Tensor, page_tables: Tensor, positions: Tensor) -> None:
        """Store those of `values` [F, w] at `positions` [F] that end a page.

        `page_tables` [F, P] holds each one's sequence's table.
        """
        store = self.room_for(values)
        numbers = positions // self._page_size
        pages = page_tables.gather(1, numbers[:, None])[:, 0]
        ends = positions % self._page_size == self._page_size - 1
        store[torch.where(ends, pages, self._pages - 1)] = values

    def room_for(self, *parts: Tensor) -> Tensor:
        """[pages, w], where features are kept that consist of `parts`."""
        if self._store is None:
            width = sum(part.shape[1] for part in parts)
            self._store = parts[0].new_zeros(self._pages, width)
        return self._store

    def of(self, pages: Tensor) -> Tensor:
        """Features [M, w] of the last positions of `pages` [M]."""
        assert self._store is not None, "a page is reused before any was committed"
        return self._store[pages]
