"""What a drafter is fed after a dense launch, gathered in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.catch_up import Committed, Followed
from alula.ops.store import Places
from alula.ops.triton.launch import ceil_div, options
from alula.ops.triton.overlap import release, wait

_BLOCK = 1024
_MOST_PARTS = 3


@triton.jit(do_not_specialize=["sequences", "steps", "nodes", "end"])
def catch_up_kernel(
    first,
    second,
    third,
    lines,
    history,
    page_table,
    root_position,
    path,
    counts,
    page_features,
    features,
    tokens,
    positions,
    last,
    slots,
    pages,
    lanes,
    sequences,
    steps,
    nodes,
    end,
    width,
    history_stride,
    table_stride,
    path_stride,
    page_size: tl.constexpr,
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (r, i, p) takes block i of part p of pair r; the newest pairs come first, then the
    others.
    """
    release(overlaps)
    row = tl.program_id(0).to(tl.int64)
    wait(overlaps)
    other = row - sequences
    sequence = tl.where(other < 0, row, other // tl.maximum(steps - 1, 1))
    count = tl.load(counts + sequence)
    newest = tl.maximum(count - 1, 0)
    step = other % tl.maximum(steps - 1, 1)
    step = tl.where(other < 0, newest, step + (step >= newest).to(tl.int64))
    node = tl.maximum(tl.load(path + sequence * path_stride + step), 0)
    position = tl.load(root_position + sequence) + step
    behind = position + 1
    table = page_table + sequence * table_stride

    part, whole = tl.program_id(2), tl.num_programs(2) * width
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    aux = tl.where(part == 0, first, tl.where(part == 1, second, third))
    feature = tl.load(aux + (sequence * nodes + node) * width + at, mask=inside)
    at += part * width
    tl.store(features + row * whole + at, feature, mask=inside)
    if (behind % page_size == 0) & (step < count):
        page = tl.load(table + position // page_size)
        tl.store(page_features + page * whole + at, feature, mask=inside)

    if (tl.program_id(1) == 0) & (part == 0):
        line = tl.load(lines + sequence)
        known = tl.minimum(behind, end)
        tl.store(tokens + row, tl.load(history + line * history_stride + known))
        page, lane = tl.load(table + behind // page_size), behind % page_size
        tl.store(positions + row, position)
        tl.store(last + row, behind)
        tl.store(slots + row, page * page_size + lane)
        tl.store(pages + row, page)
        tl.store(lanes + row, lane)


def catch_up(
    aux: tuple[Tensor, ...], committed: Committed, page_features: Tensor, page_size: int
) -> Followed:
    """See `catch_up.catch_up`; aux and page_features are contiguous, the rest has contiguous
    lines.
    """
    if len(aux) > _MOST_PARTS:
        aux = (torch.cat(aux, dim=-1),)
    first = aux[0]
    history, table, path = committed.history, committed.page_table, committed.path
    (sequences, steps), (states, width) = path.shape, first.shape
    rows = sequences * steps
    features = first.new_empty(rows, len(aux) * width)
    integers = [path.new_empty(rows) for _ in range(6)]
    catch_up_kernel[(rows, ceil_div(width, _BLOCK), len(aux))](
        *(
            *aux,
            *[first] * (_MOST_PARTS - len(aux)),
            committed.lines,
            history,
            table,
            committed.last,
            path,
            committed.counts,
        ),
        *(page_features, features, *integers),
        *(sequences, steps, states // sequences, history.shape[1] - 1, width),
        *(history.stride(0), table.stride(0), path.stride(0)),
        page_size=page_size,
        block=_BLOCK,
        **options(first),
    )
    tokens, positions, last, slots, pages, lanes = integers
    return Followed(features, tokens, positions, last, slots, Places(pages, lanes))
