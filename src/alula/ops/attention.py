"""Paged attention in plain PyTorch, exact in the number of rows.

Keys are visited in blocks of one page anchored at position 0, and the blocks' partial sums are
added along a binary tree over block numbers. A row's result therefore depends on its own keys
alone: not on the rows beside it, on padding, or on where its pages lie. Products are taken in
fp32 whatever the model's dtype. What a launch's layers share is worked out once, by `plan`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops.rows import Rows

_TILE = 4  # torch's batched matmul adds in one order where the rows are a multiple of this


class _Span(NamedTuple):
    """One sequence of a launch: r rows whose keys are `full` blocks and a gathered tail.

    The tail holds n blocks of keys by logical position: one list of slots that all rows of a
    chain share (t = 1), or one for each node of a tree (t = r).
    """

    rows: slice
    full: Tensor | slice
    full_count: int
    tail_pages: Tensor
    """[t, n, B]"""
    tail_lanes: Tensor
    """[t, n, B]"""
    tail_empty: Tensor
    """[t, n, 1, B, 1], lanes that hold no key of this sequence."""
    hidden: Tensor
    """[full + n, 1, r, 1, B], keys a row does not see."""


Plan = list[_Span]


def write_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Store k, v [R, kv_heads, d] at `slots` [R] of one layer's pools [pages, kv_heads, B, d]."""
    page_size = keys.shape[2]
    pages, lanes = slots // page_size, slots % page_size
    keys[pages, :, lanes] = k.to(keys.dtype)
    values[pages, :, lanes] = v.to(values.dtype)


def plan(rows: Rows, page_size: int, window: int | None = None) -> Plan:
    """Work out where each sequence's keys lie; one plan serves all layers of a launch.

    `window` limits a row to its last `window` logical positions, its own included.
    """
    counts = torch.bincount(rows.sequences, minlength=rows.base.shape[0]).tolist()
    bases = rows.base.tolist()
    spans, start = [], 0
    for sequence, count in enumerate(counts):
        if count:
            part = slice(start, start + count)
            spans.append(_span(rows, part, sequence, bases[sequence], page_size, window))
            start += count
    return spans


def _span(
    rows: Rows, part: slice, sequence: int, base: int, page_size: int, window: int | None
) -> _Span:
    own = rows.last[part]
    full_count = base // page_size
    table = rows.page_table[sequence]
    slots = _tail_slots(rows, part, table, base, int(own.max()), page_size)
    blocks = slots.view(slots.shape[0], -1, page_size)
    empty = blocks < 0
    lowest = rows.first if window is None else (own - window + 1).clamp_min(rows.first)
    at = torch.arange((full_count + blocks.shape[1]) * page_size, device=own.device)
    hidden = (at > own[:, None]) | (at < torch.as_tensor(lowest, device=own.device).view(-1, 1))
    return _Span(
        rows=part,
        full=_as_slice(table[:full_count]),
        full_count=full_count,
        tail_pages=blocks.clamp_min(0) // page_size,
        tail_lanes=blocks.clamp_min(0) % page_size,
        tail_empty=empty[:, :, None, :, None],
        hidden=hidden.view(len(own), -1, 1, page_size).transpose(0, 1)[:, None],
    )


def _tail_slots(
    rows: Rows, part: slice, table: Tensor, base: int, highest: int, page_size: int
) -> Tensor:
    """Slots [t, n * B] of logical positions from the last full block on, -1 where there is none."""
    start = base // page_size * page_size
    end = (base if rows.tail is not None else highest + 1)
    at = torch.arange(start, end, device=table.device)
    slots = (table[at // page_size] * page_size + at % page_size)[None]
    if rows.tail is not None:
        own = rows.tail[part]
        slots = torch.cat((slots.expand(own.shape[0], -1), own), dim=1)
    return torch.nn.functional.pad(slots, (0, -slots.shape[1] % page_size), value=-1)


def _as_slice(pages: Tensor) -> Tensor | slice:
    """Consecutive pages as a slice, so that reading them copies nothing."""
    numbers = pages.tolist()
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return pages


def attention(q: Tensor, keys: Tensor, values: Tensor, spans: Plan, scale: float) -> Tensor:
    """Attend from q [R, heads, d] to the keys each row sees; returns [R, heads, d] in q's dtype.

    `keys`, `values`: one layer's pools [pages, kv_heads, B, d], the rows' own keys already
    written. Vaswani et al., arXiv 1706.03762; grouped heads as in arXiv 2305.13245.
    """
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    for span in spans:
        out[span.rows] = _attend(q[span.rows].float() * scale, keys, values, span)
    return out.to(q.dtype)


def _attend(q: Tensor, keys: Tensor, values: Tensor, span: _Span) -> Tensor:
    """One sequence: q [r, heads, d] scaled, to [r, heads, d]."""
    r, heads, d = q.shape
    kv_heads, block = keys.shape[1], keys.shape[2]
    grouped = q.view(r, kv_heads, heads // kv_heads, d).transpose(0, 1)  # [kv, r, g, d]
    tail_k, tail_v = _gather(keys, span), _gather(values, span)
    full_k, full_v = keys[span.full].float(), values[span.full].float()
    scores = torch.cat((_dot(grouped, full_k[None].mT), _dot(grouped, tail_k.mT)))
    scores = scores.masked_fill_(span.hidden, -torch.inf)  # [n, kv, r, g, B]
    peak = scores.amax(dim=(0, 4), keepdim=True)
    weights = scores.sub_(peak).exp_()
    total = _tree_sum(weights.view(-1, block).sum(-1).view(weights.shape[:-1]))
    parts = torch.cat(
        (
            _dot(weights[: span.full_count], full_v[None]),
            _dot(weights[span.full_count :], tail_v),
        )
    )
    mean = _tree_sum(parts) / total[..., None]  # [kv, r, g, d]
    return mean.transpose(0, 1).reshape(r, heads, d)


def _gather(pool: Tensor, span: _Span) -> Tensor:
    """The tail's blocks [t, n, kv, B, d]; lanes without a key read as zero, whatever they hold."""
    tail = pool[span.tail_pages, :, span.tail_lanes].transpose(2, 3).float()
    return tail.masked_fill(span.tail_empty, 0.0)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """left [(n,) kv, r, g, i] times right [t, n, kv, i, j]: [n, kv, r, g, j], t being 1 or r.

    Rows are padded to whole tiles, so that every product runs through the same kernel.
    """
    t, n, kv_heads, inner, outer = right.shape
    r, g = left.shape[-3], left.shape[-2]
    rows = left.expand(n, kv_heads, r, g, inner)
    if t == 1:
        rows = rows.reshape(n * kv_heads, r * g, inner)
    else:
        rows = rows.permute(2, 0, 1, 3, 4).reshape(r * n * kv_heads, g, inner)
    used = rows.shape[1]
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -used % _TILE))
    product = torch.bmm(rows, right.reshape(-1, inner, outer))[:, :used]
    if t == 1:
        return product.reshape(n, kv_heads, r, g, outer)
    return product.reshape(r, n, kv_heads, g, outer).permute(1, 2, 0, 3, 4)


def _tree_sum(parts: Tensor) -> Tensor:
    """Sum over the first dimension, pairing neighbours: more zero blocks change no bit."""
    while len(parts) > 1:
        paired = len(parts) // 2 * 2
        parts = torch.cat((parts[0:paired:2] + parts[1:paired:2], parts[paired:]))
    return parts[0]
