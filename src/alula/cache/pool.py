"""The key-value pool: one tensor per model, cut into pages that any sequence may own."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from alula.ops.attention import Plan
from alula.ops.kernels import kernels_for
from alula.ops.memory import memory_for


class KVPool:
    """Keys and values of `layers` layers for `pages` pages of `page_size` slots.

    A slot's number is `page * page_size + lane`; it means the same in every pool, so that one
    page table serves target and drafter.
    """

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate. Raises ResourceError where the memory does not suffice."""
        self.pages = pages
        self.page_size = page_size
        self._kernels = kernels_for(device)
        shape = (layers, 2, pages, kv_heads, page_size, head_dim)
        size = torch.Size(shape).numel() * dtype.itemsize / 1e9
        with memory_for(
            f"a key-value cache of {size:.2f} GB",
            device,
            "lower the number of cached tokens (cache_tokens, --cache-tokens)",
            note=f"it is to hold {pages * page_size} tokens",
        ):
            self._store = _zeros(shape, dtype, device)

    def keys(self, layer: int) -> Tensor:
        """[pages, kv_heads, page_size, d] of one layer."""
        return self._store[layer, 0]

    def values(self, layer: int) -> Tensor:
        """[pages, kv_heads, page_size, d] of one layer."""
        return self._store[layer, 1]

    def clear_unwritten(self, plan: Plan) -> None:
        """Zero the lanes that `plan` reads though they hold no key, in all layers."""
        for page, lanes in plan.unwritten:
            self._store[:, :, page, :, lanes] = 0

    def commit(self, page_table: Tensor, last: Tensor, path: Tensor, counts: Tensor) -> None:
        """Move accepted nodes of draft trees to where their positions belong, in all layers.

        See `ops.commit.commit` for the arguments, of S sequences.
        """
        self._kernels.commit(self._store, page_table, last, path, counts)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU the system hands out each memory page when it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
