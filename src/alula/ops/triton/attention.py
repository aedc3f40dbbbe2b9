"""Paged attention over rows of any mix of sequences, in one launch.

What the programs of a launch are follows from the shapes of its tensors and from the number of
processors alone, so that a captured launch serves at any lengths.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alula.ops.attention import Heads, Plan
from alula.ops.rows import Rows
from alula.ops.triton import segments
from alula.ops.triton.attention_kernel import attention_kernel
from alula.ops.triton.launch import ceil_div, options, power_of_2
from alula.ops.triton.linear import machine
from alula.ops.triton.spread_attention import spread_attention_kernel
from alula.ops.triton.tiles import Capability

_BLOCK_BYTES = 16384
_MOST_KEYS = 64
_SMALL_LANES, _LARGE_LANES = 16, 64
_SMALL_WARPS, _LARGE_WARPS = 4, 8
_STAGES = 3
_SPREAD_STAGES = 1
"""A program of a spread tile visits so few blocks that a pipeline only costs."""
_TREE_WARPS = {True: 2, False: 4}
"""Of a tree's programs, of which many have to run at a time, by whether heads are wide; more where
a tile has more elements than _OF_A_WARP for each."""
_OF_A_WARP = 1024
_FEW_STAGES = 2
"""Where a tile's sums leave little room, in registers or in shared memory."""
_WARP_GROUPS = 9
"""The capability whose matrix units serve groups of four warps."""
_WIDE_HEAD = 128
"""From here on a head's keys are worth more warps, or more programs."""
_NO_WINDOW = 1 << 30
_PROGRAMS, _TREE_PROGRAMS, _WIDE_TREE_PROGRAMS = 2, 0.65, 3
"""That a processor is given where tiles are spread, beside those of a tree's nodes. A tree's tiles
are spread over two at least while each can have a processor."""
_MOST_SUMS = 1 << 18
"""Segments of all lanes that are summed apart: 128 MB with heads of 128 elements."""
_COUNTERS = 1 << 14
_MERGED_REGISTERS, _MOST_TOGETHER = 64, 10
"""That a thread may fill with segments on their way to be merged, and how many of them at most."""
_REGISTERS = 255
"""All that a thread can have; ptxas by itself takes fewer for one more block, and spills."""


class Tile(NamedTuple):
    """Rows that one program computes, and its lanes, one for each of their query heads."""

    rows: int
    lanes: int
    spread: int = 1
    """Programs that the segments of a tile are spread over; above 1 each node of a tree has a
    program of its own too."""
    warps: int = _SMALL_WARPS
    stages: int = _STAGES


class _RowPlan(Plan):
    """Rows as they are: the kernel reads them itself."""

    def __init__(self, rows: Rows, page_size: int, heads: Heads, window: int | None) -> None:
        # The kernel reads them by number, whatever their strides say.
        assert all(part.is_contiguous() for part in (rows.sequences, rows.last, rows.base))
        self._rows = rows
        self._page_size = page_size
        self._heads = heads
        self._window = window or _NO_WINDOW
        self._machine = machine(rows.last.device)
        self._tile: Tile | None = None  # the same in all layers

    @property
    def unwritten(self) -> list[tuple[int, slice]]:
        return []

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        if self._tile is None:
            self._tile = choose(self._rows, self._page_size, self._heads, q, *self._machine)
        return self.attend_in(self._tile, q, keys, values, scale)

    def attend_in(
        self, tile: Tile, q: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """As `attend`, in a given tile."""
        assert scale > 0  # the largest product is then the largest score
        group = self._heads.query // self._heads.kv
        assert tile.rows * group <= tile.lanes
        rows, d = self._rows, q.shape[2]
        block_dim, block_keys = blocks(d, q.dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tail, table = rows.tail, rows.page_table
        of_launch = (q, keys, values, out, rows.sequences, rows.last, rows.base, table, tail)
        strides = (
            *(q.stride(0), out.stride(0), table.stride(0), 0 if tail is None else tail.stride(0)),
            *(keys.stride(0), keys.stride(1)),
        )
        constants = {
            "group": group,
            "head_dim": d,
            "page_size": self._page_size,
            "has_tail": tail is not None,
            "block_queries": tile.lanes,
            "block_keys": block_keys,
            "block_dim": block_dim,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            "maxnreg": _REGISTERS,
            **options(q),
        }
        self._launch(tile, of_launch, scale * math.log2(math.e), strides, constants)
        return out

    def _launch(
        self,
        tile: Tile,
        of_launch: tuple[Tensor | None, ...],
        scale: float,
        strides: tuple[int, ...],
        constants: dict[str, Any],
    ) -> None:
        rows, count, heads = self._rows, len(self._rows.last), self._heads
        tiles, has_tail = ceil_div(count, tile.rows), rows.tail is not None
        if tile.spread == 1:
            attention_kernel[(tiles, heads.kv)](
                *of_launch,
                *(count, rows.first, self._window, tile.rows, scale),
                *strides,
                **constants,
            )
            return
        out = of_launch[3]
        assert out is not None and count * heads.query <= _COUNTERS
        most = segments.count(rows.page_table.shape[1] * self._page_size)
        sums = count * heads.query * most
        scratch = torch.empty(sums * (out.shape[2] + 2), dtype=torch.float32, device=out.device)
        spread_attention_kernel[(tiles, heads.kv, tile.spread + (tile.rows if has_tail else 0))](
            *(*of_launch, scratch, _arrivals(out.device)),
            *(count, rows.first, self._window, int(rows.settled), tile.rows, tile.spread),
            *(most, sums, scale),
            *strides,
            **_merging(tile, constants["group"], constants["block_dim"], by_row=has_tail),
            reads_early=not has_tail and tile.lanes < _LARGE_LANES,
            pipelined=tile.stages > 1,
            **constants,
        )


def _merging(tile: Tile, group: int, block_dim: int, *, by_row: bool) -> dict[str, int]:
    """How a spread tile's segments are merged: how many lanes at a time, those of the tile or,
    `by_row`, of one row, and with how many segments on their way.
    """
    merged, of_row = min(power_of_2(tile.rows * group), tile.lanes), power_of_2(group)
    of_segment = (of_row if by_row else merged) * block_dim
    together = _MERGED_REGISTERS * 32 * tile.warps // of_segment
    return {
        "block_merged": merged,
        "block_group": of_row,
        "merged_together": min(max(together, 1), _MOST_TOGETHER),
    }


def choose(
    rows: Rows,
    page_size: int,
    heads: Heads,
    q: Tensor,
    processors: int,
    capability: Capability | None = None,
) -> Tile:
    """As many rows as a sequence has in the mean: those of one sequence share what they read.

    The nodes of a tree read most of their blocks each for itself, so that few go in a tile. fp32
    has no matrix units and takes many registers. Tiles that would leave `processors` idle are
    spread. `q` is asked for its dtype and the size of its heads; the `capability` of the GPU, None
    where there is none, decides how a prompt's programs are made.
    """
    group, count, has_tail = heads.query // heads.kv, len(rows.last), rows.tail is not None
    is_small, lanes = q.dtype.itemsize < 4, max(_SMALL_LANES, power_of_2(group))
    mean = max(count // max(len(rows.page_table), 1), 1)
    if is_small and not has_tail and mean * group >= _LARGE_LANES > lanes:
        lanes = _LARGE_LANES
    is_wide = q.shape[-1] >= _WIDE_HEAD
    tile_rows = min(mean, lanes // group)
    programs = max(ceil_div(count, tile_rows) * heads.kv, 1)
    most = segments.count(rows.page_table.shape[1] * page_size)
    share: float = _PROGRAMS
    if has_tail:
        share = _WIDE_TREE_PROGRAMS if is_wide else _TREE_PROGRAMS
    least = 2 if has_tail and programs <= processors else 1
    spread = min(max(int(processors * share / programs), least), most)
    if count * heads.query * most > _MOST_SUMS or count * heads.query > _COUNTERS:
        spread = 1
    found = Tile(tile_rows, lanes, spread, _LARGE_WARPS, _STAGES)
    if not is_small:
        return found
    if has_tail:
        return _of_tree(found, q, is_wide=is_wide)
    if lanes >= _LARGE_LANES:
        return _of_prompt(found, capability, is_wide=is_wide)
    if spread == 1:
        return found._replace(warps=_SMALL_WARPS)
    warps = _LARGE_WARPS if is_wide and spread == most else _SMALL_WARPS
    return found._replace(warps=warps, stages=_SPREAD_STAGES)


def _of_tree(tile: Tile, q: Tensor, *, is_wide: bool) -> Tile:
    """As few warps as the tile's elements allow, since so many programs wait for each other."""
    block_dim, _ = blocks(q.shape[-1], q.dtype)
    warps = max(_TREE_WARPS[is_wide], min(tile.lanes * block_dim // _OF_A_WARP, _LARGE_WARPS))
    return tile._replace(warps=warps, stages=_SPREAD_STAGES)


def _of_prompt(tile: Tile, capability: Capability | None, *, is_wide: bool) -> Tile:
    """Where the matrix units read their operands from shared memory, few warps have registers
    enough for a tile that is not spread, and two programs go on a processor.
    """
    if tile.spread > 1:
        return tile._replace(stages=_FEW_STAGES)
    if capability is None or capability[0] != _WARP_GROUPS:
        return tile
    return tile._replace(warps=_SMALL_WARPS, stages=_FEW_STAGES if is_wide else _STAGES)


def blocks(head_dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """A head's padded size, and the keys of a block: what orders a model's sums."""
    block_dim = max(power_of_2(head_dim), 16)
    keys = min(_MOST_KEYS, _BLOCK_BYTES // (block_dim * dtype.itemsize))
    return block_dim, max(keys, 16) if dtype.itemsize < 4 else 16


def plan(rows: Rows, page_size: int, heads: Heads, window: int | None = None) -> _RowPlan:
    """See `attention.plan`; nothing is read back from the device."""
    return _RowPlan(rows, page_size, heads, window)


@cache
def _arrivals(device: torch.device) -> Tensor:
    """Counters of the programs that have summed for a lane, zero between launches: the last one
    resets them. One launch at a time may use them.
    """
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
