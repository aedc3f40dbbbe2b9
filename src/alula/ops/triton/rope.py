"""Rotary embedding, with the norms before it and the store of keys and values behind it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.attention import Heads
from alula.ops.rope import Rotation
from alula.ops.store import HeadNorms, Places
from alula.ops.triton.launch import ceil_div, options, power_of_2
from alula.ops.triton.overlap import release, wait

HEADS_PER_PROGRAM = 8


@triton.jit
def turned(first, second, cos, sin):
    """Pairs of elements, rotated."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def rotate_kernel(
    projected,
    cos,
    sin,
    query_norm,
    key_norm,
    queries,
    keys,
    values,
    pages,
    lanes,
    row_stride,
    page_stride,
    head_stride,
    eps,
    query_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    has_norms: tl.constexpr,
    block_heads: tl.constexpr,
    block_half: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (r, i) takes block i of row r's heads: query heads, key heads, value heads."""
    release(overlaps)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block_heads + tl.arange(0, block_heads)[:, None]
    low = tl.arange(0, block_half)[None, :]
    inside = (head < query_heads + 2 * kv_heads) & (low < half)
    is_query = head < query_heads
    is_value = head >= query_heads + kv_heads

    wait(overlaps)
    start = projected + row * row_stride + head * 2 * half + low
    first_in = tl.load(start, mask=inside, other=0.0)
    second_in = tl.load(start + half, mask=inside, other=0.0)
    first, second = first_in.to(tl.float32), second_in.to(tl.float32)
    if has_norms:
        squares = tl.sum(first * first + second * second, axis=1)
        scale = tl.rsqrt(squares / (2 * half) + eps)[:, None]
        weight = tl.where(is_query, query_norm, key_norm) + low
        first *= scale * tl.load(weight, mask=low < half, other=0.0)
        second *= scale * tl.load(weight + half, mask=low < half, other=0.0)
        first = first.to(first_in.dtype).to(tl.float32)
        second = second.to(first_in.dtype).to(tl.float32)
    angle = row * 2 * half + low
    c = tl.load(cos + angle, mask=low < half, other=0.0)
    s = tl.load(sin + angle + half, mask=low < half, other=0.0)
    first, second = turned(first, second, c, s)
    first_out, second_out = first.to(first_in.dtype), second.to(first_in.dtype)

    to_query = queries + (row * query_heads + head) * 2 * half + low
    tl.store(to_query, first_out, mask=inside & is_query)
    tl.store(to_query + half, second_out, mask=inside & is_query)
    if kv_heads > 0:
        page = tl.load(pages + row)
        stores = inside & (page >= 0)
        place = page * page_stride + tl.load(lanes + row) * 2 * half + low
        is_key = stores & (head >= query_heads) & (head < query_heads + kv_heads)
        to_key = keys + place + (head - query_heads) * head_stride
        tl.store(to_key, first_out.to(keys.dtype.element_ty), mask=is_key)
        tl.store(to_key + half, second_out.to(keys.dtype.element_ty), mask=is_key)
        to_value = values + place + (head - query_heads - kv_heads) * head_stride
        tl.store(to_value, first_in.to(values.dtype.element_ty), mask=stores & is_value)
        tl.store(to_value + half, second_in.to(values.dtype.element_ty), mask=stores & is_value)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """See `rope.rotate`; x [R, heads, d] has contiguous rows."""
    return _launch(x, Heads(x.shape[1], 0), rotation, x, x, None, None)


def rotate_and_store(
    projected: Tensor,
    heads: Heads,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    at: Places,
    norms: HeadNorms | None = None,
) -> Tensor:
    """See `store.rotate_and_store`."""
    return _launch(projected, heads, rotation, keys, values, at, norms)


def _launch(
    projected: Tensor,
    heads: Heads,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    at: Places | None,
    norms: HeadNorms | None,
) -> Tensor:
    rows, count, d = projected.shape
    queries = torch.empty(rows, heads.query, d, dtype=projected.dtype, device=projected.device)
    rotate_kernel[(rows, ceil_div(count, HEADS_PER_PROGRAM))](
        *(projected, rotation.cos, rotation.sin),
        *((norms.query, norms.key) if norms else (None, None)),
        *(queries, keys, values),
        *(at or (None, None)),
        *(projected.stride(0), keys.stride(0), keys.stride(1)),
        norms.eps if norms else 0.0,
        query_heads=heads.query,
        kv_heads=heads.kv,
        half=d // 2,
        has_norms=norms is not None,
        block_heads=HEADS_PER_PROGRAM,
        block_half=power_of_2(d // 2),
        **options(projected),
    )
    return queries
