"""One key of its own for every query, added to an attention that is there already."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.launch import ceil_div, power_of_2

_VALUES = 2048
"""Of one tensor in one program; the gradient holds eight tensors in registers."""


@triton.jit(do_not_specialize=["rows", "length"])
def attend_own_kernel(
    q,
    k,
    v,
    out,
    lse,
    rows,
    length,
    scale,
    q_stride,
    k_stride,
    v_stride,
    heads: tl.constexpr,
    group: tl.constexpr,
    d: tl.constexpr,
    block_rows: tl.constexpr,
    block_d: tl.constexpr,
):
    """Program (i, j) takes block i of the rows and the query heads of key head j."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    kv, at, exists = tl.program_id(1), tl.arange(0, block_d)[None, :], row < rows
    inside = exists[:, None] & (at < d)
    own = row[:, None]
    key = tl.load(k + own * k_stride + kv * d + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(v + own * v_stride + kv * d + at, mask=inside, other=0.0).to(tl.float32)
    for member in range(group):
        head = kv * group + member
        query = tl.load(q + own * q_stride + head * d + at, mask=inside, other=0.0)
        score = tl.sum(query.to(tl.float32) * key, axis=1) * scale
        to_lse = lse + (row // length * heads + head) * length + row % length
        before = tl.load(to_lse, mask=exists, other=0.0)
        top = tl.maximum(before, score)
        after = top + tl.log(tl.exp(before - top) + tl.exp(score - top))
        to_out = out + (own * heads + head) * d + at
        mixed = tl.load(to_out, mask=inside, other=0.0).to(tl.float32)
        mixed = mixed * tl.exp(before - after)[:, None] + value * tl.exp(score - after)[:, None]
        tl.store(to_out, mixed.to(out.dtype.element_ty), mask=inside)
        tl.store(to_lse, after, mask=exists)


@triton.jit(do_not_specialize=["rows", "length"])
def attend_own_gradient_kernel(
    gradient,
    q,
    k,
    v,
    out,
    lse,
    q_gradient,
    k_gradient,
    v_gradient,
    rows,
    length,
    scale,
    q_stride,
    k_stride,
    v_stride,
    heads: tl.constexpr,
    group: tl.constexpr,
    d: tl.constexpr,
    block_rows: tl.constexpr,
    block_d: tl.constexpr,
):
    """Programs as of `attend_own_kernel`."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    kv, at, exists = tl.program_id(1), tl.arange(0, block_d)[None, :], row < rows
    inside = exists[:, None] & (at < d)
    own = row[:, None]
    key = tl.load(k + own * k_stride + kv * d + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(v + own * v_stride + kv * d + at, mask=inside, other=0.0).to(tl.float32)
    key_change = tl.zeros((block_rows, block_d), dtype=tl.float32)
    value_change = tl.zeros((block_rows, block_d), dtype=tl.float32)
    for member in range(group):
        head = kv * group + member
        query = tl.load(q + own * q_stride + head * d + at, mask=inside, other=0.0).to(tl.float32)
        of_head = (own * heads + head) * d + at
        asked = tl.load(gradient + of_head, mask=inside, other=0.0).to(tl.float32)
        mixed = tl.load(out + of_head, mask=inside, other=0.0).to(tl.float32)
        from_lse = lse + (row // length * heads + head) * length + row % length
        score = tl.sum(query * key, axis=1) * scale
        weight = tl.exp(score - tl.load(from_lse, mask=exists, other=0.0))
        pull = (scale * weight * tl.sum(asked * (value - mixed), axis=1))[:, None]
        before = tl.load(q_gradient + of_head, mask=inside, other=0.0).to(tl.float32)
        after = before + pull * key
        tl.store(q_gradient + of_head, after.to(q_gradient.dtype.element_ty), mask=inside)
        key_change += pull * query
        value_change += weight[:, None] * asked
    to = own * (heads // group) * d + kv * d + at
    tl.store(k_gradient + to, key_change.to(k_gradient.dtype.element_ty), mask=inside)
    tl.store(v_gradient + to, value_change.to(v_gradient.dtype.element_ty), mask=inside)


def attend_own(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> None:
    """See `own_key.attend_own`; q, k, v are slices of contiguous rows, lse is contiguous."""
    grid, blocks = _shapes(q, k)
    attend_own_kernel[grid](*(q, k, v, out, lse), *_numbers(q, k, v, scale), **blocks)


def attend_own_gradient(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    q_gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `own_key.attend_own_gradient`; tensors as of `attend_own`, the gradient contiguous."""
    grid, blocks = _shapes(q, k)
    changes = [torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2)]
    attend_own_gradient_kernel[grid](
        *(gradient, q, k, v, out, lse, q_gradient, *changes),
        *_numbers(q, k, v, scale),
        **blocks,
    )
    return changes[0], changes[1]


def _shapes(q: Tensor, k: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, and what is known when compiling."""
    batch, length, heads, d = q.shape
    kv, block_d = k.shape[2], power_of_2(d)
    block_rows = max(1, _VALUES // block_d)
    blocks = {"block_rows": block_rows, "block_d": block_d}
    grid = (ceil_div(batch * length, block_rows), kv)
    return grid, {"heads": heads, "group": heads // kv, "d": d, **blocks}


def _numbers(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[float, ...]:
    batch, length = q.shape[:2]
    return batch * length, length, scale, q.stride(1), k.stride(1), v.stride(1)
