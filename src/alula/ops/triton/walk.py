"""The walk down a draft tree, one program to a sequence."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.overlap import release, wait
from alula.ops.walk import Path


@triton.jit
def walk_kernel(
    tokens,
    parents,
    choice,
    rows,
    emitted,
    length,
    tokens_stride,
    parents_stride,
    choice_stride,
    nodes,
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Descend while a child's token equals the parent's choice; of equal siblings the first."""
    release(overlaps)
    wait(overlaps)
    sequence = tl.program_id(0).to(tl.int64)
    step = tl.arange(0, block)
    exists = step < nodes
    token = tl.load(tokens + sequence * tokens_stride + step, mask=exists, other=-1)
    parent = tl.load(parents + sequence * parents_stride + step, mask=exists, other=-1)
    path = tl.full((block,), -1, tl.int64)
    found = tl.full((block,), -1, tl.int64)
    here = tl.zeros((), tl.int64)
    count = tl.zeros((), tl.int64)
    while here >= 0:
        chosen = tl.load(choice + sequence * choice_stride + here)
        path = tl.where(step == count, here, path)
        found = tl.where(step == count, chosen, found)
        count += 1
        follows = (parent == here) & (token == chosen) & (token >= 0)
        first = tl.min(tl.where(follows, step, block), axis=0)
        here = tl.where(first < block, first + 1, -1).to(tl.int64)
    to = sequence * (nodes + 1) + step
    tl.store(rows + to, path, mask=step <= nodes)
    tl.store(emitted + to, found, mask=step <= nodes)
    tl.store(length + sequence, count)


def walk(tokens: Tensor, parents: Tensor, choice: Tensor) -> Path:
    """See `walk.walk`; all have contiguous lines."""
    sequences, nodes = tokens.shape
    rows, emitted = (choice.new_empty(sequences, nodes + 1) for _ in range(2))
    length = choice.new_empty(sequences)
    walk_kernel[(sequences,)](
        *(tokens, parents, choice, rows, emitted, length),
        *(tokens.stride(0), parents.stride(0), choice.stride(0), nodes),
        block=power_of_2(nodes + 1),
        num_warps=1,
        **options(choice),
    )
    return Path(rows, emitted, length)
