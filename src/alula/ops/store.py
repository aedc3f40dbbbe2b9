"""From a projection to the cache: heads rotated, keys and values stored."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops.attention import Heads
from alula.ops.norm import rms_norm
from alula.ops.rope import Rotation, rotate


class Places(NamedTuple):
    """Where R rows' keys and values are stored."""

    pages: Tensor
    """[R] int64; a Triton kernel stores nothing for a negative one."""
    lanes: Tensor
    """[R] int64."""


class HeadNorms(NamedTuple):
    """RMSNorms of single heads before their rotation, as Qwen3 has them."""

    query: Tensor
    """[d] fp32."""
    key: Tensor
    """[d] fp32."""
    eps: float


def places(slots: Tensor, page_size: int) -> Places:
    """Pages and lanes of `slots` [R]."""
    return Places(slots // page_size, slots % page_size)


def write_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, at: Places) -> None:
    """Store k, v [R, kv_heads, d] in one layer's pools [pages, kv_heads, B, d]."""
    keys[at.pages, :, at.lanes] = k.to(keys.dtype)
    values[at.pages, :, at.lanes] = v.to(values.dtype)


def rotate_and_store(
    projected: Tensor,
    heads: Heads,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    at: Places,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Split projected [R, query + 2 kv, d] into heads; store keys and values, return the queries.

    `keys`, `values`: one layer's pools [pages, kv, B, d]; queries [R, query, d] and keys are
    normed, where the family has norms, and rotated.
    """
    both = heads.query + heads.kv
    qk = projected[:, :both]
    if norms is not None:
        q, k = qk[:, : heads.query], qk[:, heads.query :]
        q, k = rms_norm(q, norms.query, norms.eps), rms_norm(k, norms.key, norms.eps)
        qk = torch.cat((q, k), dim=1)
    qk = rotate(qk, rotation)
    write_kv(keys, values, qk[:, heads.query :], projected[:, both:], at)
    return qk[:, : heads.query]
