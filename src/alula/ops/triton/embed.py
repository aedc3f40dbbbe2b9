"""Token embeddings."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.overlap import dependent, release, wait

_BLOCK = 1024


@triton.jit
def embed_kernel(ids, table, out, width, block: tl.constexpr, overlaps: tl.constexpr):
    """Program (r, i) copies block i of row r's embedding."""
    release(overlaps)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    wait(overlaps)
    token = tl.load(ids + row).to(tl.int64)
    value = tl.load(table + token * width + at, mask=at < width, other=0.0)
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=at < width)


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """See `embed.embed`; the table is contiguous."""
    width = table.shape[1]
    out = torch.empty(*ids.shape, width, dtype=dtype, device=table.device)
    block = min(triton.next_power_of_2(width), _BLOCK)
    embed_kernel[(ids.numel(), triton.cdiv(width, block))](
        *(ids.contiguous(), table, out, width), block=block, **dependent(table)
    )
    return out
