"""Rows over a paged cache, for tests of attention: random pages, poison wherever nothing lies."""

from __future__ import annotations

import torch
from torch import Tensor

from alula.ops.rows import Rows

Span = tuple[int, int]
PAGE = 4


def chains(spans: list[Span], *, first: int = 0, seed: int = 0, page: int = PAGE) -> Rows:
    """Rows start … end - 1 of a sequence for each span."""
    table = _table(len(spans), max(end for _, end in spans), seed, page)
    positions = torch.cat([torch.arange(*span) for span in spans])
    counts = torch.tensor([end - start for start, end in spans])
    sequences = torch.arange(len(spans)).repeat_interleave(counts)
    return Rows(
        positions=positions,
        slots=table[sequences, positions // page] * page + positions % page,
        sequences=sequences,
        last=positions,
        page_table=table,
        base=torch.tensor([start for start, _ in spans]),
        first=first,
    )


def trees(
    roots: list[int], parents: list[int], *, first: int = 0, seed: int = 0, page: int = PAGE
) -> Rows:
    """Under the root at each of `roots` the same tree, given by its nodes' parents from 1 on."""
    ways = [[0]]
    for node, parent in enumerate(parents, start=1):
        ways.append([*ways[parent], node])
    longest = max(map(len, ways))
    table = _table(len(roots), max(roots) + len(ways), seed, page)
    nodes = torch.arange(len(ways)).repeat(len(roots))
    sequences = torch.arange(len(roots)).repeat_interleave(len(ways))
    base = torch.tensor(roots)

    def slots(numbers: Tensor) -> Tensor:
        places = base[sequences][:, None] + numbers
        return table[sequences[:, None], places // page] * page + places % page

    way = torch.tensor([way + [-1] * (longest - len(way)) for way in ways])[nodes]
    depths = (way >= 0).sum(1) - 1
    return Rows(
        positions=base[sequences] + depths,
        slots=slots(nodes[:, None])[:, 0],
        sequences=sequences,
        last=base[sequences] + depths,
        page_table=table,
        base=base,
        tail=torch.where(way >= 0, slots(way.clamp_min(0)), -1),
        first=first,
    )


def joined(left: Rows, right: Rows) -> Rows:
    """The rows of both in one launch; `right`'s are chains and its pages lie behind `left`'s."""
    assert left.tail is not None
    pages, slots = left.page_table.numel(), left.page_table.numel() * PAGE
    width = max(left.page_table.shape[1], right.page_table.shape[1])
    tables = [
        torch.nn.functional.pad(table, (0, width - table.shape[1]))
        for table in (left.page_table, right.page_table + pages)
    ]
    none = torch.full((len(right.slots), left.tail.shape[1]), -1)
    return Rows(
        positions=torch.cat((left.positions, right.positions)),
        slots=torch.cat((left.slots, right.slots + slots)),
        sequences=torch.cat((left.sequences, right.sequences + len(left.base))),
        last=torch.cat((left.last, right.last)),
        page_table=torch.cat(tables),
        base=torch.cat((left.base, right.base)),
        tail=torch.cat((left.tail, none)),
        first=left.first,
    )


def only(rows: Rows, chosen: Tensor) -> Rows:
    """Some of the rows of a launch, as a launch of their own over the same pages."""
    parts = {name: getattr(rows, name)[chosen] for name in ("positions", "slots", "last")}
    tail = None if rows.tail is None else rows.tail[chosen]
    return rows._replace(sequences=rows.sequences[chosen], tail=tail, **parts)


def to(rows: Rows, device: torch.device) -> Rows:
    """The same rows on another device."""
    return Rows(*(part.to(device) if isinstance(part, Tensor) else part for part in rows))


def sight(rows: Rows, row: int, window: int | None = None, page: int = PAGE) -> Tensor:
    """Slots of the keys that a row sees, by position: the definition that attention follows."""
    last, sequence = int(rows.last[row]), int(rows.sequences[row])
    base, seen = int(rows.base[sequence]), []
    for position in range(max(rows.first, last - (window or last + 1) + 1), last + 1):
        if rows.tail is not None and int(rows.tail[row, 0]) >= 0 and position >= base:
            seen.append(int(rows.tail[row, position - base]))
        else:
            at = int(rows.page_table[sequence, position // page])
            seen.append(at * page + position % page)
    return torch.tensor(seen, device=rows.slots.device)


def pools(rows: Rows, kv_heads: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random keys and values where any row sees one, NaN in all other slots."""
    device, rows = rows.slots.device, to(rows, torch.device("cpu"))
    pages = rows.page_table.numel()
    seen = torch.cat([sight(rows, row) for row in range(len(rows.slots))])
    made = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        store = torch.full((pages, kv_heads, PAGE, d), torch.nan)
        noise = torch.randn(store.shape, generator=generator)
        store[seen // PAGE, :, seen % PAGE] = noise[seen // PAGE, :, seen % PAGE]
        made.append(store.to(device, dtype))
    return made[0], made[1]


def dense(
    rows: Rows, q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """Attention row by row, head by head, in fp64: [R, heads, d]."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    group = q.shape[1] // keys.shape[1]
    for row in range(len(q)):
        slots = sight(rows, row, window)
        k = keys[slots // PAGE, :, slots % PAGE].double().repeat_interleave(group, dim=1)
        v = values[slots // PAGE, :, slots % PAGE].double().repeat_interleave(group, dim=1)
        weights = torch.einsum("hd,nhd->hn", q[row].double() * scale, k).softmax(-1)
        out[row] = torch.einsum("hn,nhd->hd", weights, v)
    return out


def _table(sequences: int, length: int, seed: int, page: int) -> Tensor:
    pages = -(-length // page) + 1
    order = torch.randperm(sequences * pages, generator=torch.Generator().manual_seed(seed))
    return order.view(sequences, pages)
