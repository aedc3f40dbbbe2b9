"""The layout of a round of fixed size, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.lines import LineState
from alula.ops.prepare import Prepared
from alula.ops.rope import Rotation
from alula.ops.rows import Rows
from alula.ops.store import Places
from alula.ops.triton.launch import ceil_div, options, power_of_2
from alula.ops.triton.overlap import release, wait

_PAGES = 1024
"""Of a page table, copied by one program."""
_VALUES_PER_WARP = 1024


@triton.jit
def _slot(table, place, mask, page_size: tl.constexpr):
    """Page, lane and slot of a logical position."""
    page = tl.load(table + place // page_size, mask=mask, other=0)
    lane = place % page_size
    return page, lane, page * page_size + lane


@triton.jit(do_not_specialize=["nodes", "history_width", "table_width", "draft_width"])
def prepare_kernel(
    at,
    history,
    lengths,
    page_table,
    draft_tokens,
    draft_parents,
    cos,
    sin,
    ids,
    positions,
    slots,
    sequences,
    table,
    roots,
    tail,
    pages,
    lanes,
    row_cos,
    row_sin,
    lines,
    following,
    numbers,
    tokens,
    parents,
    depths,
    row_numbers,
    path,
    drafted,
    nodes,
    history_width,
    table_width,
    draft_width,
    page_size: tl.constexpr,
    depth: tl.constexpr,
    head_dim: tl.constexpr,
    has_tail: tl.constexpr,
    block_nodes: tl.constexpr,
    block_pages: tl.constexpr,
    block_dim: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (s, 0) lays out the root and the nodes of sequence s, those behind copy its pages."""
    release(overlaps)
    sequence, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    wait(overlaps)
    line = tl.load(at + sequence)
    from_table = page_table + line * table_width
    if part > 0:
        number = (part - 1) * block_pages + tl.arange(0, block_pages)
        known = tl.load(from_table + number, mask=number < table_width, other=0)
        tl.store(table + sequence * table_width + number, known, mask=number < table_width)
        return

    root = tl.load(lengths + line) - 1
    node = tl.arange(0, block_nodes).to(tl.int64)
    exists = node <= nodes
    row = sequence * (nodes + 1) + node
    draft_tokens += line * draft_width - 1  # node 1 has the first entry
    draft_parents += line * draft_width - 1
    is_drafted = exists & (node > 0)
    token = tl.load(draft_tokens + node, mask=is_drafted, other=-1)
    deep = tl.zeros((block_nodes,), tl.int64)
    up = node
    for _ in tl.static_range(depth + 1):
        deep += (up > 0).to(tl.int64)
        up = tl.load(draft_parents + up, mask=exists & (up > 0), other=0)
    position = root + deep
    page, lane, slot = _slot(from_table, root + node, exists, page_size)
    first = tl.load(history + line * history_width + root)

    tl.store(ids + row, tl.where(node == 0, first, tl.maximum(token, 0)), mask=exists)
    tl.store(positions + row, position, mask=exists)
    tl.store(following + row, position + 1, mask=exists)
    tl.store(slots + row, slot, mask=exists)
    tl.store(pages + row, page, mask=exists)
    tl.store(lanes + row, lane, mask=exists)
    tl.store(sequences + row, sequence + node * 0, mask=exists)
    tl.store(lines + row, line + node * 0, mask=exists)
    tl.store(numbers + row, node, mask=exists)
    tl.store(row_numbers + row, row, mask=exists)
    tl.store(depths + row, deep, mask=exists)
    tl.store(roots + sequence, root)
    of_draft = sequence * nodes + node - 1
    parent = tl.load(draft_parents + node, mask=is_drafted, other=0)
    tl.store(tokens + of_draft, token, mask=is_drafted)
    tl.store(parents + of_draft, parent, mask=is_drafted)
    used = token >= 0
    tl.store(drafted + sequence * 2, tl.sum(used.to(tl.int64), axis=0))
    tl.store(drafted + sequence * 2 + 1, tl.max(tl.where(used, deep, 0), axis=0))

    # Up a way once more: what lies `step` above a node belongs at its depth less `step`. The
    # entries behind the node's own are just those that the steps beyond the root are left for.
    up = node
    for step in tl.static_range(depth + 1):
        on_way = step <= deep
        entry = tl.where(on_way, deep - step, step)
        inside = exists & (entry <= depth)
        above = tl.load(draft_tokens + up, mask=inside & on_way & (up > 0), other=-1)
        tl.store(path + row * depth + entry - 1, above, mask=inside & (entry > 0))
        if has_tail:
            _page, _lane, there = _slot(from_table, root + up, inside & on_way, page_size)
            to = tail + row * (depth + 1) + entry
            tl.store(to, tl.where(on_way, there, -1), mask=inside)
        up = tl.load(draft_parents + up, mask=exists & (up > 0), other=0)

    of_head = tl.arange(0, block_dim)[None, :]
    inside = exists[:, None] & (of_head < head_dim)
    angle = position[:, None] * head_dim + of_head
    to = row[:, None] * head_dim + of_head
    tl.store(row_cos + to, tl.load(cos + angle, mask=inside, other=0.0), mask=inside)
    tl.store(row_sin + to, tl.load(sin + angle, mask=inside, other=0.0), mask=inside)


def prepare(
    at: Tensor,
    state: LineState,
    angles: Rotation,
    page_size: int,
    nodes: int,
    depth: int,
    *,
    has_tail: bool,
) -> Prepared:
    """See `prepare.prepare`; all are contiguous."""
    made = _room(at, state, angles, nodes, depth, has_tail=has_tail)
    rows, head_dim = made.rows, angles.cos.shape[-1]
    block_nodes, block_dim = power_of_2(nodes + 1), power_of_2(head_dim)
    pages = state.page_table.shape[1]
    prepare_kernel[(at.shape[0], 1 + ceil_div(pages, _PAGES))](
        *(at, state.history, state.lengths, state.page_table),
        *(state.draft_tokens, state.draft_parents, *angles),
        *(made.ids, rows.positions, rows.slots, rows.sequences, rows.page_table, rows.base),
        *(rows.tail, *made.places, *made.rotation, *made[4:]),
        *(nodes, state.history.shape[1], pages, state.draft_tokens.shape[1]),
        page_size=page_size,
        depth=depth,
        head_dim=head_dim,
        has_tail=has_tail,
        block_nodes=block_nodes,
        block_pages=_PAGES,
        block_dim=block_dim,
        num_warps=min(max(block_nodes * block_dim // _VALUES_PER_WARP, 4), 8),
        **options(at),
    )
    return made


def _room(
    at: Tensor, state: LineState, angles: Rotation, nodes: int, depth: int, *, has_tail: bool
) -> Prepared:
    """What the kernel fills."""
    sequences = at.shape[0]
    rows = sequences * (nodes + 1)

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=at.device)

    def rotation() -> Tensor:
        return torch.empty(rows, *angles.cos.shape[1:], device=at.device)

    positions, roots = integers(rows), integers(sequences)
    table = integers(sequences, state.page_table.shape[1])
    tail = integers(rows, depth + 1) if has_tail else None
    return Prepared(
        ids=integers(rows),
        rows=Rows(positions, integers(rows), integers(rows), positions, table, roots, tail),
        places=Places(integers(rows), integers(rows)),
        rotation=Rotation(rotation(), rotation()),
        lines=integers(rows),
        following=integers(rows),
        numbers=integers(rows),
        tokens=integers(sequences, nodes),
        parents=integers(sequences, nodes),
        depths=integers(sequences, nodes + 1),
        row_numbers=integers(sequences, nodes + 1),
        path=integers(sequences, nodes + 1, depth),
        drafted=integers(sequences, 2),
    )
