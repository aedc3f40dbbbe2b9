"""Paged attention in plain PyTorch, exact in the number of rows.

Keys are visited in blocks of one page anchored at position 0, and the blocks' partial sums are
added in block order. A row's result therefore depends on its own keys alone: not on the rows
beside it, on padding, or on where its pages lie. Products are taken in fp32 whatever the model's
dtype. What a launch's layers share is worked out once, by `plan`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.ops.rows import Rows

_TILE = 4  # torch's batched matmul adds in one order where the rows are a multiple of this


class _Tail(NamedTuple):
    """Keys that each node of a tree reads through its own list of slots (r rows, m blocks)."""

    pages: Tensor
    """[r, m, B]"""
    lanes: Tensor
    """[r, m, B]"""
    empty: Tensor
    """[r, m, 1, B, 1], lanes of the last block that hold no key."""


class _Span(NamedTuple):
    """One sequence of a launch: r rows that share n blocks of keys, and perhaps a tail each."""

    rows: slice
    pages: Tensor | slice
    hidden: Tensor
    """[n + m, 1, r, 1, B], keys a row does not see."""
    unwritten: tuple[int, int] | None
    """Page and first lane behind a chain's last key."""
    tail: _Tail | None


Plan = list[_Span]


def plan(rows: Rows, page_size: int, window: int | None = None) -> Plan:
    """Work out where each sequence's keys lie; one plan serves all layers of a launch.

    `window` limits a row to its last `window` logical positions, its own included.
    """
    counts = torch.bincount(rows.sequences, minlength=rows.base.shape[0]).tolist()
    spans, start = [], 0
    for sequence, count in enumerate(counts):
        if count:
            part = slice(start, start + count)
            table = rows.page_table[sequence]
            if rows.tail is None or int(rows.tail[start, 0]) < 0:
                spans.append(_chain_span(rows, part, table, page_size, window))
            else:
                base = int(rows.base[sequence])
                spans.append(_tree_span(rows, part, table, base, page_size, window))
            start += count
    return spans


def _chain_span(
    rows: Rows, part: slice, table: Tensor, page_size: int, window: int | None
) -> _Span:
    highest = int(rows.last[part].max())
    pages = table[: highest // page_size + 1]
    lane = highest % page_size + 1
    return _Span(
        rows=part,
        pages=_as_slice(pages),
        hidden=_hidden(rows, part, len(pages), page_size, window),
        unwritten=(int(pages[-1]), lane) if lane < page_size else None,
        tail=None,
    )


def _tree_span(
    rows: Rows, part: slice, table: Tensor, base: int, page_size: int, window: int | None
) -> _Span:
    assert rows.tail is not None
    shared = base // page_size
    at = torch.arange(shared * page_size, base, device=table.device)
    before = table[shared] * page_size + at % page_size
    own = rows.tail[part]
    slots = torch.cat((before.expand(len(own), -1), own), dim=1)
    slots = F.pad(slots, (0, -slots.shape[1] % page_size), value=-1)
    slots = slots.view(len(own), -1, page_size)
    held = slots.clamp_min(0)
    empty = (slots < 0)[:, :, None, :, None]
    return _Span(
        rows=part,
        pages=_as_slice(table[:shared]),
        hidden=_hidden(rows, part, shared + slots.shape[1], page_size, window),
        unwritten=None,
        tail=_Tail(held // page_size, held % page_size, empty),
    )


def _hidden(rows: Rows, part: slice, blocks: int, page_size: int, window: int | None) -> Tensor:
    """Which of the first `blocks` blocks' keys each row does not see, [blocks, 1, r, 1, B]."""
    own = rows.last[part, None]
    at = torch.arange(blocks * page_size, device=own.device)
    hidden = (at > own) | (at < rows.first)
    if window is not None:
        hidden |= at <= own - window
    return hidden.view(len(own), blocks, 1, page_size).transpose(0, 1)[:, None]


def _as_slice(pages: Tensor) -> Tensor | slice:
    """Consecutive pages as a slice, so that reading them copies nothing."""
    numbers = pages.tolist()
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return pages


def write_kv(
    keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor, spans: Plan
) -> None:
    """Store k, v [R, kv_heads, d] at `slots` [R] of one layer's pools [pages, kv_heads, B, d].

    Lanes behind a chain's last key are cleared: they hold nothing, and where attention masks
    them a weight of zero would not cancel a NaN.
    """
    page_size = keys.shape[2]
    pages, lanes = slots // page_size, slots % page_size
    keys[pages, :, lanes] = k.to(keys.dtype)
    values[pages, :, lanes] = v.to(values.dtype)
    for span in spans:
        if span.unwritten is not None:
            page, lane = span.unwritten
            values[page, :, lane:].zero_()


def attention(q: Tensor, keys: Tensor, values: Tensor, spans: Plan, scale: float) -> Tensor:
    """Attend from q [R, heads, d] to the keys each row sees; returns [R, heads, d] in q's dtype.

    `keys`, `values`: one layer's pools [pages, kv_heads, B, d], the rows' own keys already
    written by `write_kv`. Vaswani et al., arXiv 1706.03762; grouped heads as in arXiv 2305.13245.
    """
    parts = [_attend(q[span.rows].float() * scale, keys, values, span) for span in spans]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(q.dtype)


def _attend(q: Tensor, keys: Tensor, values: Tensor, span: _Span) -> Tensor:
    """One sequence: q [r, heads, d] scaled, to [r, heads, d]."""
    r, heads, d = q.shape
    kv_heads = keys.shape[1]
    grouped = q.view(r, kv_heads, heads // kv_heads, d).transpose(0, 1)  # [kv, r, g, d]
    scores = _shared_product(grouped, keys[span.pages].float().mT)
    if span.tail is not None:
        own = _tail_product(grouped, _gather(keys, span.tail).mT)
        scores = torch.cat((scores, own))
    scores = scores.masked_fill_(span.hidden, -torch.inf)  # [n + m, kv, r, g, B]
    weights = scores.sub_(scores.amax(dim=(0, 4), keepdim=True)).exp_()
    shared = values[span.pages].float()
    parts = _shared_product(weights[: len(shared)], shared)
    if span.tail is not None:
        own = _tail_product(weights[len(shared) :], _gather(values, span.tail))
        parts = torch.cat((parts, own))
    # A running sum adds block after block whatever their number; a reduction would regroup them.
    sums = torch.cat((parts, weights.sum(-1, keepdim=True)), dim=-1).cumsum(0)[-1]
    return (sums[..., :-1] / sums[..., -1:]).transpose(0, 1).reshape(r, heads, d)


def _gather(pool: Tensor, tail: _Tail) -> Tensor:
    """The tail's blocks [r, m, kv, B, d]; lanes without a key read as zero, whatever they hold."""
    return pool[tail.pages, :, tail.lanes].transpose(2, 3).float().masked_fill_(tail.empty, 0.0)


def _shared_product(left: Tensor, right: Tensor) -> Tensor:
    """left [(n,) kv, r, g, i] times right [n, kv, i, j], all rows alike: [n, kv, r, g, j]."""
    n, kv_heads, inner, outer = right.shape
    r, g = left.shape[-3], left.shape[-2]
    rows = _tiles(left.reshape(*left.shape[:-3], r * g, inner))
    rows = rows.expand(n, *rows.shape[-3:]).flatten(0, 1)  # n may be 0
    product = torch.bmm(rows, right.reshape(n * kv_heads, inner, outer))
    return product[:, : r * g].reshape(n, kv_heads, r, g, outer)


def _tail_product(left: Tensor, right: Tensor) -> Tensor:
    """left [(m,) kv, r, g, i] times right [r, m, kv, i, j], row by row: [m, kv, r, g, j]."""
    r, m, kv_heads, inner, outer = right.shape
    g = left.shape[-2]
    rows = left.expand(m, kv_heads, r, g, inner).permute(2, 0, 1, 3, 4)
    rows = _tiles(rows.reshape(r * m * kv_heads, g, inner))
    product = torch.bmm(rows, right.reshape(r * m * kv_heads, inner, outer))[:, :g]
    return product.reshape(r, m, kv_heads, g, outer).permute(1, 2, 0, 3, 4)


def _tiles(rows: Tensor) -> Tensor:
    """Pad rows [..., M, i] to whole tiles, so that every product runs through one kernel."""
    missing = -rows.shape[-2] % _TILE
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows
