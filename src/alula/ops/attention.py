"""Paged attention in plain PyTorch, exact in the number of rows.

Keys are visited in blocks of one page anchored at position 0, and the blocks' partial sums are
added in block order. A row's result therefore depends on its own keys alone: not on the rows
beside it, on padding, or on where its pages lie. Products are taken in fp32 whatever the model's
dtype. What a launch's layers share is worked out once, by `plan`.

For products of fewer than 400 terms torch takes another kernel where the rows are few. Pages of
at least 16 keys with heads of 8 elements or a multiple of it stay clear of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.ops.rows import Rows

_TILE = 4  # torch's batched matmul adds in one order where the rows are a multiple of this


class Heads(NamedTuple):
    """How many query heads there are, and key-value heads, each serving query // kv of them."""

    query: int
    kv: int


class _Tail(NamedTuple):
    """Keys that each node of a tree reads through its own list of slots (r rows, m blocks)."""

    pages: Tensor
    """[r, m, B]"""
    lanes: Tensor
    """[r, m, B]"""
    empty: Tensor
    """[r, m, 1, B, 1], lanes of the last block that hold no key."""
    mask: Tensor
    """[r * m * kv, g padded to tiles, B] fp32, -inf on keys a row does not see, else 0."""


class _Span(NamedTuple):
    """One sequence of a launch: r rows that share n blocks of keys, and perhaps a tail each."""

    rows: slice
    pages: Tensor | slice
    mask: Tensor
    """[n * kv, r * g padded to tiles, B] fp32, as the tail's."""
    unwritten: list[tuple[int, slice]]
    """Lanes by page that are read and hold no key: before `first`, behind a chain's last key."""
    tail: _Tail | None


class Plan(ABC):
    """Which keys each row of a launch sees, worked out once for all its layers."""

    @property
    @abstractmethod
    def unwritten(self) -> list[tuple[int, slice]]:
        """Lanes by page that are read although nothing was written there."""

    @abstractmethod
    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attend from q [R, heads, d] to the keys each row sees: [R, heads, d] in q's dtype.

        `keys`, `values`: one layer's pools [pages, kv_heads, B, d], the rows' own keys already
        written. Vaswani et al., arXiv 1706.03762; grouped heads as in arXiv 2305.13245.
        """


class _SpanPlan(Plan):
    """One sequence after the other."""

    def __init__(self, spans: list[_Span]) -> None:
        self._spans = spans

    @property
    def unwritten(self) -> list[tuple[int, slice]]:
        return [lanes for span in self._spans for lanes in span.unwritten]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        outputs = []
        for span in self._spans:
            attend = _attend_chain if span.tail is None else _attend_tree
            outputs.append(attend(q[span.rows].float(), keys, values, span, scale))
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).to(q.dtype)


def plan(rows: Rows, page_size: int, heads: Heads, window: int | None = None) -> Plan:
    """Work out where each sequence's keys lie; one plan serves all layers of a launch.

    `window` limits a row to its last `window` logical positions, its own included. Lanes before
    `first` and behind a chain's last key hold nothing, but attention reads them: clear them
    (`KVPool.clear_unwritten`) before the launch writes, since a weight of zero does not cancel a
    NaN.
    """
    counts = torch.bincount(rows.sequences, minlength=rows.base.shape[0]).tolist()
    spans, start = [], 0
    for sequence, count in enumerate(counts):
        if count:
            part = slice(start, start + count)
            table = rows.page_table[sequence]
            if rows.tail is None or int(rows.tail[start, 0]) < 0:
                spans.append(_chain_span(rows, part, table, page_size, heads, window))
            else:
                base = int(rows.base[sequence])
                spans.append(_tree_span(rows, part, table, base, page_size, heads, window))
            start += count
    return _SpanPlan(spans)


def _chain_span(
    rows: Rows, part: slice, table: Tensor, page_size: int, heads: Heads, window: int | None
) -> _Span:
    highest = int(rows.last[part].max())
    pages = table[: highest // page_size + 1]
    behind = (int(pages[-1]), slice(highest % page_size + 1, None))
    return _Span(
        rows=part,
        pages=_as_slice(pages),
        mask=_shared_mask(_hidden(rows, part, len(pages), page_size, window), heads),
        unwritten=[*_before_first(rows, table, page_size), behind],
        tail=None,
    )


def _tree_span(
    rows: Rows,
    part: slice,
    table: Tensor,
    base: int,
    page_size: int,
    heads: Heads,
    window: int | None,
) -> _Span:
    assert rows.tail is not None
    shared = base // page_size
    at = torch.arange(shared * page_size, base, device=table.device)
    before = table[shared] * page_size + at % page_size
    own = rows.tail[part]
    slots = torch.cat((before.expand(len(own), -1), own), dim=1)
    slots = F.pad(slots, (0, -slots.shape[1] % page_size), value=-1)
    slots = slots.view(len(own), -1, page_size)
    hidden = _hidden(rows, part, shared + slots.shape[1], page_size, window)
    stored = slots.clamp_min(0)
    empty = (slots < 0)[:, :, None, :, None]
    return _Span(
        rows=part,
        pages=_as_slice(table[:shared]),
        mask=_shared_mask(hidden[:shared], heads),
        unwritten=_before_first(rows, table, page_size),
        tail=_Tail(
            pages=stored // page_size,
            lanes=stored % page_size,
            empty=empty,
            mask=_tail_mask(hidden[shared:], heads),
        ),
    )


def _before_first(rows: Rows, table: Tensor, page_size: int) -> list[tuple[int, slice]]:
    pages = table[: -(-rows.first // page_size)].tolist()
    return [(page, slice(rows.first - i * page_size)) for i, page in enumerate(pages)]


def _hidden(rows: Rows, part: slice, blocks: int, page_size: int, window: int | None) -> Tensor:
    """-inf where a row does not see a key of the first `blocks` blocks, else 0: [blocks, r, B]."""
    own = rows.last[part, None]
    at = torch.arange(blocks * page_size, device=own.device)
    hidden = (at > own) | (at < rows.first)
    if window is not None:
        hidden |= at <= own - window
    mask = torch.zeros(hidden.shape, device=own.device).masked_fill_(hidden, -torch.inf)
    return mask.view(len(own), blocks, page_size).transpose(0, 1)


def _shared_mask(hidden: Tensor, heads: Heads) -> Tensor:
    """From [n, r, B] to the layout of a shared product."""
    n, r, block = hidden.shape
    group = heads.query // heads.kv
    mask = hidden[:, None, :, None].expand(n, heads.kv, r, group, block)
    return _tiles(mask.reshape(n * heads.kv, r * group, block))


def _tail_mask(hidden: Tensor, heads: Heads) -> Tensor:
    """From [m, r, B] to the layout of a tail's product."""
    m, r, block = hidden.shape
    group = heads.query // heads.kv
    mask = hidden.transpose(0, 1)[:, :, None, None].expand(r, m, heads.kv, group, block)
    return _tiles(mask.reshape(r * m * heads.kv, group, block))


def _as_slice(pages: Tensor) -> Tensor | slice:
    """Consecutive pages as a slice, so that reading them copies nothing."""
    numbers = pages.tolist()
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return pages


def _attend_chain(q: Tensor, keys: Tensor, values: Tensor, span: _Span, scale: float) -> Tensor:
    """One sequence whose rows share all their blocks: q [r, heads, d] to [r, heads, d]."""
    kv_heads, block, d = keys.shape[1:]
    grouped = _by_kv_head(q, kv_heads)
    rows = _tiles(grouped.reshape(kv_heads, -1, d)).expand(len(span.mask) // kv_heads, -1, -1, -1)
    k, v = (pool[span.pages].float().view(-1, block, d) for pool in (keys, values))
    scores = torch.baddbmm(span.mask, rows.reshape(len(k), -1, d), k.mT, alpha=scale)
    weights = _exponentials(scores.view(-1, kv_heads, *scores.shape[1:]))
    parts = torch.bmm(weights.view(scores.shape), v).view(*weights.shape[:-1], d)
    mean = _mean(parts, weights.sum(-1))[:, : grouped.shape[1] * grouped.shape[2]]
    return mean.reshape(grouped.shape).transpose(0, 1).reshape(q.shape)


def _attend_tree(q: Tensor, keys: Tensor, values: Tensor, span: _Span, scale: float) -> Tensor:
    """One sequence whose rows share blocks and read a tail each; the same sums as a chain's."""
    assert span.tail is not None
    kv_heads = keys.shape[1]
    grouped = _by_kv_head(q, kv_heads)
    shared_k, shared_v = keys[span.pages].float(), values[span.pages].float()
    tail_k, tail_v = _gather(keys, span.tail), _gather(values, span.tail)
    scores = torch.cat(
        (
            _shared_product(grouped, shared_k.mT, span.mask, scale),
            _tail_product(grouped, tail_k.mT, span.tail.mask, scale),
        )
    )
    weights = _exponentials(scores)  # [n + m, kv, r, g, B]
    n = len(shared_v)
    parts = torch.cat((_shared_product(weights[:n], shared_v), _tail_product(weights[n:], tail_v)))
    return _mean(parts, weights.sum(-1)).transpose(0, 1).reshape(q.shape)


def _by_kv_head(q: Tensor, kv_heads: int) -> Tensor:
    """From [r, heads, d] to [kv, r, g, d]."""
    return q.view(q.shape[0], kv_heads, -1, q.shape[2]).transpose(0, 1)


def _exponentials(scores: Tensor) -> Tensor:
    """exp(score - the row's largest), rows running over the first and the last dimension."""
    return scores.sub_(scores.amax(dim=(0, -1), keepdim=True)).exp_()


def _mean(parts: Tensor, sums: Tensor) -> Tensor:
    """Weighted mean from the blocks' weighted sums [n, …, d] and sums of weights [n, …].

    A running sum adds block after block whatever their number; a reduction would regroup them.
    """
    return parts.cumsum(0)[-1].div_(sums.cumsum(0)[-1][..., None])


def _gather(pool: Tensor, tail: _Tail) -> Tensor:
    """The tail's blocks [r, m, kv, B, d]; lanes without a key read as zero, whatever they hold."""
    return pool[tail.pages, :, tail.lanes].transpose(2, 3).float().masked_fill_(tail.empty, 0.0)


def _shared_product(
    left: Tensor, right: Tensor, mask: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """left [(n,) kv, r, g, i] times right [n, kv, i, j], all rows alike: [n, kv, r, g, j]."""
    n, kv_heads, inner, outer = right.shape
    r, g = left.shape[-3], left.shape[-2]
    rows = _tiles(left.reshape(*left.shape[:-3], r * g, inner))
    rows = rows.expand(n, *rows.shape[-3:]).reshape(n * kv_heads, rows.shape[-2], inner)
    product = _product(rows, right.reshape(n * kv_heads, inner, outer), mask, scale)
    return product[:, : r * g].reshape(n, kv_heads, r, g, outer)


def _tail_product(
    left: Tensor, right: Tensor, mask: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """left [(m,) kv, r, g, i] times right [r, m, kv, i, j], row by row: [m, kv, r, g, j]."""
    r, m, kv_heads, inner, outer = right.shape
    g = left.shape[-2]
    rows = left.expand(m, kv_heads, r, g, inner).permute(2, 0, 1, 3, 4)
    rows = _tiles(rows.reshape(r * m * kv_heads, g, inner))
    product = _product(rows, right.reshape(r * m * kv_heads, inner, outer), mask, scale)
    return product[:, :g].reshape(r, m, kv_heads, g, outer).permute(1, 2, 0, 3, 4)


def _product(left: Tensor, right: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if mask is None:
        return torch.bmm(left, right)
    return torch.baddbmm(mask, left, right, alpha=scale)


def _tiles(rows: Tensor) -> Tensor:
    """Pad rows [..., M, i] to whole tiles, so that every product runs through one kernel."""
    missing = -rows.shape[-2] % _TILE
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows
