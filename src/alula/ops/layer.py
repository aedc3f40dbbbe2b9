"""What a decoder layer is made of besides attention: its linears, joined with what surrounds them.

A form may put off a norm's division until a linear has multiplied (`Normed.squares`): a sum over
a row scaled as a whole is the scaled sum. Joined or one after another, a form's results are the
same to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.ops.activation import silu_and_mul
from alula.ops.attention import Heads
from alula.ops.linear import Weight, linear
from alula.ops.norm import Norm, Normed, add_rms_norm, rms_norm
from alula.ops.rope import Rotation
from alula.ops.store import HeadNorms, Places, rotate_and_store


class Stream(NamedTuple):
    """The residual stream of R rows, and what the next linear reads of it."""

    x: Tensor
    """[R, h]"""
    normed: Normed
    room: Tensor | None = None
    """[n, R] int64 zeros, where the sums of squares of the next n values of the stream are put."""


class Store(NamedTuple):
    """One layer's pools [pages, kv, B, d], and where R rows' keys and values go in them."""

    keys: Tensor
    values: Tensor
    at: Places


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype, norm: Norm, changes: int) -> Stream:
    """Begin a residual stream in `dtype` with rows `ids` [R] of a table [V, h].

    `changes`: how often `add` will be called on it.
    """
    del changes
    x = F.embedding(ids, table).to(dtype)
    return Stream(x, Normed(rms_norm(x, *norm)))


def add(stream: Stream, inner: Tensor, weight: Weight, norm: Norm) -> Stream:
    """Add inner [R, in] times the transpose of weight [h, in], and norm the sum."""
    x, normed = add_rms_norm(stream.x, linear(inner, weight), *norm)
    return Stream(x, Normed(normed))


def project(normed: Normed, weight: Weight, dtype: torch.dtype) -> Tensor:
    """Rows [R, in] times the transpose of weight [out, in], plus its bias: [R, out] in `dtype`,
    the weight's own or fp32.
    """
    return weight.multiply(normed.values.to(weight.dtype), dtype)


def project_heads(
    normed: Normed,
    weight: Weight,
    heads: Heads,
    rotation: Rotation,
    store: Store,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Queries [R, query, d] of rows, their keys and values stored; see `rotate_and_store`."""
    projected = project(normed, weight, weight.dtype)
    split = projected.view(len(projected), heads.query + 2 * heads.kv, -1)
    return rotate_and_store(split, heads, rotation, *store, norms)


def gate(normed: Normed, gate_up: Weight) -> Tensor:
    """SwiGLU's inner product: silu of the first half of the projection times the second, [R, f]."""
    return silu_and_mul(project(normed, gate_up, gate_up.dtype))
