"""The commit: accepted nodes' keys and values go where their positions belong."""

from __future__ import annotations

import torch
from torch import Tensor


def commit(store: Tensor, page_table: Tensor, last: Tensor, path: Tensor, counts: Tensor) -> None:
    """Make the first `counts` [S] nodes of each path contiguous, in all layers.

    `store` [layers, 2, pages, kv_heads, B, d] holds keys and values; `page_table` [S, P] int64.
    Node i of a sequence lies in the slot of logical position `last` [S] + i, and entry a of its
    `path` [S, A], from the root (0) down, belongs in that of `last` + a. All are read before any
    is written, so that the two may overlap.
    """
    size = store.shape[4]
    step = torch.arange(path.shape[1], device=path.device)
    sequence, at = ((step < counts[:, None]) & (path != step)).nonzero(as_tuple=True)
    source, target = (last[sequence] + node for node in (path[sequence, at], at))
    pages, to_pages = (page_table[sequence, place // size] for place in (source, target))
    taken = store[:, :, pages, :, source % size].clone()
    store[:, :, to_pages, :, target % size] = taken
