"""A drafter's pairs: gathered, normed, joined, and their rotation worked out, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.pair import Pairs, PairWeights
from alula.ops.rope import Rotation
from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.norm import warps
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.turn import cos_and_sin


@triton.jit
def pair_kernel(
    hidden,
    sources,
    tokens,
    positions,
    table,
    embedding_norm,
    hidden_norm,
    frequencies,
    inputs,
    residual,
    cos,
    sin,
    room,
    table_stride,
    width,
    half,
    eps,
    scale,
    norms_residual: tl.constexpr,
    block: tl.constexpr,
    block_half: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (r, 0) makes the embedding's half of pair r and zeroes its room, (r, 1) the rest."""
    row, is_hidden = tl.program_id(0).to(tl.int64), tl.program_id(1) == 1
    at, low = tl.arange(0, block), tl.arange(0, block_half)
    inside = at < width
    weight = tl.load(tl.where(is_hidden, hidden_norm, embedding_norm) + at, mask=inside, other=0.0)
    frequency = tl.load(frequencies + low, mask=low < half, other=0.0)
    wait(overlaps)
    release(overlaps)  # not before: see `overlap`
    if is_hidden:
        source = row
        if sources is not None:
            source = tl.load(sources + row)
        value = tl.load(hidden + source * width + at, mask=inside, other=0.0)
        normed = _norm(value, weight, width, eps)
        tl.store(inputs + row * 2 * width + width + at, normed, mask=inside)
        tl.store(residual + row * width + at, normed if norms_residual else value, mask=inside)
        c, s = cos_and_sin(tl.load(positions + row).to(tl.float32) * frequency)
        to = row * 2 * half + low
        tl.store(cos + to, c * scale, mask=low < half)
        tl.store(cos + to + half, c * scale, mask=low < half)
        tl.store(sin + to, -s * scale, mask=low < half)
        tl.store(sin + to + half, s * scale, mask=low < half)
    else:
        token = tl.load(tokens + row)
        embedded = tl.load(table + token * table_stride + at, mask=inside, other=0.0)
        normed = _norm(embedded.to(inputs.dtype.element_ty), weight, width, eps)
        tl.store(inputs + row * 2 * width + at, normed, mask=inside)
        if room is not None:
            tl.store(room + row, tl.zeros((), tl.int64))
            tl.store(room + tl.num_programs(0) + row, tl.zeros((), tl.int64))


@triton.jit
def _norm(value, weight, width, eps):
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / width + eps)
    return (wide * scale * weight.to(tl.float32)).to(value.dtype)


def pair(
    hidden: Tensor, sources: Tensor | None, tokens: Tensor, positions: Tensor, weights: PairWeights
) -> Pairs:
    """See `pair.pair`; the table has contiguous rows, all else is contiguous."""
    rows, width, half = len(tokens), hidden.shape[1], len(weights.frequencies)
    inputs = hidden.new_empty(rows, 2 * width)
    residual = hidden.new_empty(rows, width)
    cos, sin = (weights.frequencies.new_empty(rows, 1, 2 * half) for _ in range(2))
    # Half precision is too narrow for rows whose division a linear puts off.
    is_wide = hidden.dtype != torch.float16
    room = tokens.new_empty(2, rows) if is_wide else None
    block = power_of_2(width)
    pair_kernel[(rows, 2)](
        *(hidden, sources, tokens, positions, weights.table),
        *(weights.embedding_norm, weights.hidden_norm, weights.frequencies),
        *(inputs, residual, cos, sin, room),
        *(weights.table.stride(0), width, half, weights.eps, weights.scale),
        norms_residual=weights.norms_residual,
        block=block,
        block_half=power_of_2(half),
        num_warps=warps(block),
        **options(hidden),
    )
    return Pairs(inputs, residual, Rotation(cos, sin), room)
