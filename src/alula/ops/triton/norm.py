"""RMSNorm, alone and joined with the residual addition before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.overlap import release, wait

_VALUES_PER_WARP = 512


@triton.jit
def rms_norm_kernel(
    x,
    change,
    weight,
    total,
    out,
    x_stride,
    width,
    eps,
    adds: tl.constexpr,
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program r norms row r, of `x + change` where it adds; the sum is kept in `total`."""
    release(overlaps)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait(overlaps)
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0)
    if adds:
        added = tl.load(change + row * width + at, mask=inside, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
        tl.store(total + row * width + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / width + eps)
    tl.store(out + row * width + at, (wide * scale * factor).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `norm.rms_norm`; x [R, h] has contiguous rows."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, None, out, eps)
    return out


def add_rms_norm(x: Tensor, change: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `norm.add_rms_norm`; x and change [R, h] are contiguous and of one dtype."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    _launch(x, change, weight, total, out, eps)
    return total, out


def _launch(
    x: Tensor, change: Tensor | None, weight: Tensor, total: Tensor | None, out: Tensor, eps: float
) -> None:
    rows, width = x.shape
    block = power_of_2(width)
    rms_norm_kernel[(rows,)](
        *(x, change, weight, total, out, x.stride(0), width, eps),
        adds=change is not None,
        block=block,
        num_warps=warps(block),
        **options(x),
    )


def warps(block: int) -> int:
    """Warps for rows of `block` values: a property of the model, so that it orders every sum."""
    return min(max(block // _VALUES_PER_WARP, 1), 8)
