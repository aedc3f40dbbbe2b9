"""SwiGLU's inner product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.launch import ceil_div, options
from alula.ops.triton.overlap import release, wait

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(gate_up, out, width, block: tl.constexpr, overlaps: tl.constexpr):
    """Program (r, i) computes block i of row r."""
    release(overlaps)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    wait(overlaps)
    gate = tl.load(gate_up + row * 2 * width + at, mask=at < width, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=at < width, other=0.0)
    product = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    tl.store(out + row * width + at, product.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def silu_and_mul_gradient_kernel(gate_up, gradient, out, width, block: tl.constexpr):
    """Program (r, i) computes both halves of block i of row r."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    asked = tl.load(gradient + row * width + at, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    of_gate, of_up = asked * up * share * (1.0 + gate * (1.0 - share)), asked * gate * share
    to = out + row * 2 * width + at
    tl.store(to, of_gate.to(out.dtype.element_ty), mask=inside)
    tl.store(to + width, of_up.to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `activation.silu_and_mul`; gate_up [R, 2 * f] is contiguous."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    grid = (rows, ceil_div(width, BLOCK))
    silu_and_mul_kernel[grid](gate_up, out, width, block=BLOCK, **options(gate_up))
    return out


def silu_and_mul_gradient(gate_up: Tensor, gradient: Tensor) -> Tensor:
    """See `activation.silu_and_mul_gradient`; both are contiguous."""
    rows, width = gradient.shape
    out = torch.empty_like(gate_up)
    grid = (rows, ceil_div(width, BLOCK))
    silu_and_mul_gradient_kernel[grid](gate_up, gradient, out, width, block=BLOCK)
    return out
