"""The commit of accepted keys and values, all layers in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.overlap import release, wait

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@triton.jit(do_not_specialize=["steps"])
def commit_kernel(
    store,
    page_table,
    last,
    path,
    counts,
    steps,
    part_stride,
    page_stride,
    head_stride,
    table_stride,
    path_stride,
    page_size: tl.constexpr,
    head_dim: tl.constexpr,
    block_steps: tl.constexpr,
    block_dim: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (s, i, h) takes head h of the keys or values of a layer, i, of sequence s."""
    release(overlaps)
    wait(overlaps)
    sequence = tl.program_id(0).to(tl.int64)
    step = tl.arange(0, block_steps)
    count = tl.minimum(tl.load(counts + sequence), steps)
    node = tl.load(path + sequence * path_stride + step, mask=step < count, other=0)
    moves = (step < count) & (node != step)
    if tl.max(moves.to(tl.int32), axis=0) > 0:
        root = tl.load(last + sequence)
        table = page_table + sequence * table_stride
        source, target = root + node, root + step
        page = tl.load(table + source // page_size, mask=moves, other=0)
        to_page = tl.load(table + target // page_size, mask=moves, other=0)
        at = tl.arange(0, block_dim)[None, :]
        inside = moves[:, None] & (at < head_dim)
        store += tl.program_id(1).to(tl.int64) * part_stride + tl.program_id(2) * head_stride
        place = page * page_stride + source % page_size * head_dim
        to_place = to_page * page_stride + target % page_size * head_dim
        taken = tl.load(store + place[:, None] + at, mask=inside)
        # A row that is overwritten may be one that another thread reads.
        tl.debug_barrier()
        tl.store(store + to_place[:, None] + at, taken, mask=inside)


def commit(store: Tensor, page_table: Tensor, last: Tensor, path: Tensor, counts: Tensor) -> None:
    """See `commit.commit`; each layer of the store is contiguous, as are the lines of the rest."""
    layers, parts, _, heads, page_size, d = store.shape
    steps = path.shape[1]
    bits = store.view(_BITS[store.dtype.itemsize])
    commit_kernel[(path.shape[0], layers * parts, heads)](
        *(bits, page_table, last, path, counts, steps),
        *(store.stride(1), store.stride(2), store.stride(3)),
        *(page_table.stride(0), path.stride(0)),
        page_size=page_size,
        head_dim=d,
        block_steps=power_of_2(steps),
        block_dim=power_of_2(d),
        **options(store),
    )
