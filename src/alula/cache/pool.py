"""The key-value pool: one tensor per model, cut into pages that any sequence may own."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from alula.errors import ResourceError
from alula.ops.attention import Plan


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
        shape = (layers, 2, pages, kv_heads, page_size, head_dim)
        try:
            self._store = _zeros(shape, dtype, device)
        except (RuntimeError, MemoryError) as error:
            size = torch.Size(shape).numel() * dtype.itemsize / 1e9
            raise ResourceError(
                f"no room for a key-value cache of {size:.2f} GB",
                f"{pages * page_size} tokens were asked for on {device} ({error})",
                "lower the number of cached tokens (cache_tokens, --cache-tokens)",
            ) from error

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

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` [M] to slots `target` [M] in all layers.

        All are read before any is written, so that the two may overlap.
        """
        size = self.page_size
        taken = self._store[:, :, source // size, :, source % size].clone()
        self._store[:, :, target // size, :, target % size] = taken


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU the system hands out each memory page when it is first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
