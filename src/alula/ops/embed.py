"""Token embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of `table` [V, h] for ids [...] int64, in `dtype`: [..., h]."""
    return F.embedding(ids, table).to(dtype)
