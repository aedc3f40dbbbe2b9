"""SwiGLU's inner product."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(gate_up, out, width, block: tl.constexpr):
    """Program (r, i) computes block i of row r."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    gate = tl.load(gate_up + row * 2 * width + at, mask=at < width, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=at < width, other=0.0)
    product = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    tl.store(out + row * width + at, product.to(out.dtype.element_ty), mask=at < width)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `activation.silu_and_mul`; gate_up [R, 2 * f] is contiguous."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    silu_and_mul_kernel[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, block=BLOCK)
    return out
