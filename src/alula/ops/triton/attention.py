"""Paged attention over rows of any mix of sequences, in one launch.

A program computes one tile of rows for one key-value head. Keys are visited in blocks anchored at
logical position 0, in order, and added to an online softmax (Milakov and Gimelshein, arXiv
1805.02867; Dao et al., arXiv 2205.14135). A block of which a row sees nothing leaves that row as
it was, bit for bit, so that a tile may visit the blocks of all its rows. Row sums come from the
matrix units too: unlike a reduction, they add in one order whatever the tile's size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.attention import Heads, Plan
from alula.ops.rows import Rows

_BLOCK_VALUES = 16384
_MOST_KEYS = 64
_SMALL_TILE, _LARGE_TILE = 16, 64
_NO_WINDOW = 1 << 30
WARPS, STAGES = 4, 2


@triton.jit
def _visit(q, keys, values, place, stored, sees, in_head, largest, total, mixed, scale):
    """Add the block of keys at `place` to the running softmax of a tile's rows.

    `stored`: keys of the block that exist; others may hold anything, and read as zero. `sees`:
    which of them each row sees.
    """
    at = tl.arange(0, q.shape[1])[None, :]
    inside = stored[:, None] & in_head[None, :]
    k = tl.load(keys + place[:, None] + at, mask=inside, other=0.0)
    v = tl.load(values + place[:, None] + at, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(sees, scores, -float("inf"))
    new = tl.maximum(largest, tl.max(scores, axis=1))
    pivot = tl.where(new == -float("inf"), 0.0, new)
    weights = tl.exp2(scores - pivot[:, None]).to(v.dtype)
    kept = tl.exp2(largest - pivot)[:, None]
    ones = tl.full((weights.shape[1], 16), 1.0, dtype=v.dtype)
    total = tl.dot(weights, ones, total * kept, input_precision="ieee")
    mixed = tl.dot(weights, v, mixed * kept, input_precision="ieee")
    return new, total, mixed


@triton.jit(
    do_not_specialize=["rows", "first", "window", "tile_rows", "table_stride", "tail_stride"]
)
def attention_kernel(
    q,
    keys,
    values,
    out,
    sequences,
    last,
    base,
    page_table,
    tail,
    rows,
    first,
    window,
    tile_rows,
    scale,
    q_stride,
    out_stride,
    table_stride,
    tail_stride,
    page_stride,
    head_stride,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    has_tail: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    block_dim: tl.constexpr,
):
    """Program (i, h) computes rows i * tile_rows … for key-value head h.

    `scale` includes log2(e). Lane n of a tile is query head n % group of its row n // group.
    """
    first_row = tl.program_id(0) * tile_rows
    end_row = tl.minimum(first_row + tile_rows, rows)
    head = tl.program_id(1)
    keys += head * head_stride
    values += head * head_stride
    lane = tl.arange(0, block_queries)
    in_block = tl.arange(0, block_keys)
    at = tl.arange(0, block_dim)
    row = first_row + lane // group
    here = (lane // group < tile_rows) & (row < rows)
    of_query = (head * group + lane % group)[:, None] * head_dim + at[None, :]
    in_head = at < head_dim
    exists = here[:, None] & in_head[None, :]
    q_tile = tl.load(q + row.to(tl.int64)[:, None] * q_stride + of_query, mask=exists, other=0.0)

    sequence = tl.load(sequences + row, mask=here, other=-1).to(tl.int32)
    own = tl.load(last + row, mask=here, other=-1).to(tl.int32)
    lowest = tl.maximum(own - window + 1, first)
    shared_end = own + 1
    if has_tail:
        own_base = tl.load(base + sequence, mask=here, other=0).to(tl.int32)
        in_tree = tl.load(tail + row.to(tl.int64) * tail_stride, mask=here, other=-1) >= 0
        shared_end = tl.where(in_tree, own_base // block_keys * block_keys, shared_end)

    largest = tl.full((block_queries,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((block_queries, 16), dtype=tl.float32)
    mixed = tl.zeros((block_queries, block_dim), dtype=tl.float32)

    # Blocks that a sequence's rows share, found through its page table.
    last_sequence = tl.load(sequences + end_row - 1).to(tl.int32)
    for s in range(tl.load(sequences + first_row).to(tl.int32), last_sequence + 1):
        of = here & (sequence == s)
        end = tl.max(tl.where(of, shared_end, 0), axis=0)
        start = tl.min(tl.where(of, lowest, end), axis=0) // block_keys * block_keys
        table = page_table + s * table_stride
        for block in range(start, end, block_keys):
            position = block + in_block
            stored = (position < end) & (position >= first)
            page = tl.load(table + position // page_size, mask=stored, other=0)
            place = page * page_stride + position % page_size * head_dim
            sees = (position[None, :] < shared_end[:, None]) & of[:, None]
            sees &= (position[None, :] >= lowest[:, None]) & stored[None, :]
            largest, total, mixed = _visit(
                q_tile, keys, values, place, stored, sees, in_head, largest, total, mixed, scale
            )

    # Blocks that a node of a tree has for itself: from its base on it reads its own ancestors.
    if has_tail:
        for r in range(first_row, end_row):
            own_tail = tail + r * tail_stride
            line = tl.load(sequences + r)
            root = tl.load(base + line).to(tl.int32)
            own_last = tl.load(last + r).to(tl.int32)
            from_position = tl.maximum(own_last - window + 1, first)
            start = tl.maximum(root, from_position) // block_keys * block_keys
            end = tl.where(tl.load(own_tail) >= 0, own_last + 1, start)
            table = page_table + line * table_stride
            for block in range(start, end, block_keys):
                position = block + in_block
                stored = (position < end) & (position >= from_position)
                below = stored & (position < root)
                page = tl.load(table + position // page_size, mask=below, other=0)
                slot = tl.load(
                    own_tail + position - root, mask=stored & (position >= root), other=0
                )
                page = tl.where(below, page, slot // page_size)
                in_page = tl.where(below, position % page_size, slot % page_size)
                place = page * page_stride + in_page * head_dim
                sees = (here & (row == r))[:, None] & stored[None, :]
                largest, total, mixed = _visit(
                    q_tile,
                    keys,
                    values,
                    place,
                    stored,
                    sees,
                    in_head,
                    largest,
                    total,
                    mixed,
                    scale,
                )

    # All columns of `total` are alike. A row that sees nothing is padding, and becomes zero.
    weight = tl.max(total, axis=1)[:, None]
    mean = mixed / tl.where(weight > 0, weight, 1.0)
    to = out + row.to(tl.int64)[:, None] * out_stride + of_query
    tl.store(to, mean.to(out.dtype.element_ty), mask=exists)


class Tile(NamedTuple):
    """Rows that one program computes, and its lanes, one for each of their query heads."""

    rows: int
    lanes: int


class _RowPlan(Plan):
    """Rows as they are: the kernel reads them itself."""

    def __init__(self, rows: Rows, page_size: int, heads: Heads, window: int | None) -> None:
        # The kernel reads them by number, whatever their strides say.
        assert all(part.is_contiguous() for part in (rows.sequences, rows.last, rows.base))
        self._rows = rows
        self._page_size = page_size
        self._heads = heads
        self._window = window or _NO_WINDOW
        self._tile = choose(rows, heads.query // heads.kv)

    @property
    def unwritten(self) -> list[tuple[int, slice]]:
        return []

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        return self.attend_in(self._tile, q, keys, values, scale)

    def attend_in(
        self, tile: Tile, q: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """As `attend`, in a given tile."""
        rows, (count, _, d) = self._rows, q.shape
        block_dim, block_keys = blocks(d, q.dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tail, table = rows.tail, rows.page_table
        attention_kernel[(triton.cdiv(count, tile.rows), self._heads.kv)](
            *(q, keys, values, out, rows.sequences, rows.last, rows.base, table, tail),
            *(count, rows.first, self._window, tile.rows, scale * math.log2(math.e)),
            *(q.stride(0), out.stride(0), table.stride(0), 0 if tail is None else tail.stride(0)),
            *(keys.stride(0), keys.stride(1)),
            group=self._heads.query // self._heads.kv,
            head_dim=d,
            page_size=self._page_size,
            has_tail=tail is not None,
            block_queries=tile.lanes,
            block_keys=block_keys,
            block_dim=block_dim,
            num_warps=WARPS,
            num_stages=STAGES,
        )
        return out


def choose(rows: Rows, group: int) -> Tile:
    """As many rows as a sequence has in the mean: those of one sequence share what they read.

    The nodes of a tree read most of their blocks each for itself, so that few go in a tile.
    """
    lanes = max(_SMALL_TILE, triton.next_power_of_2(group))
    mean = max(rows.positions.shape[0] // max(rows.page_table.shape[0], 1), 1)
    if rows.tail is None and mean * group >= _LARGE_TILE > lanes:
        lanes = _LARGE_TILE
    return Tile(min(mean, lanes // group), lanes)


def blocks(head_dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """A head's padded size, and the keys of a block: what orders a model's sums."""
    block_dim = max(triton.next_power_of_2(head_dim), 16)
    return block_dim, max(min(_MOST_KEYS, _BLOCK_VALUES // (block_dim * dtype.itemsize)), 16)


def plan(rows: Rows, page_size: int, heads: Heads, window: int | None = None) -> _RowPlan:
    """See `attention.plan`; nothing is read back from the device."""
    return _RowPlan(rows, page_size, heads, window)
