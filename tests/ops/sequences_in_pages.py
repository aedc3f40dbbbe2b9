"""Sequences in a paged pool, and what attention over them is in plain float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.ops.attention import Heads, plan
from alula.ops.rows import Rows
from alula.ops.store import places, write_kv


class Vectors(NamedTuple):
    """Queries [n, heads, d], keys and values [n, kv, d]."""

    q: Tensor
    k: Tensor
    v: Tensor

    def at(self, where: slice | list[int]) -> Vectors:
        return Vectors(*(part[where] for part in self))

    def then(self, other: Vectors) -> Vectors:
        return Vectors(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


def random_vectors(count: int, heads: Heads, d: int, seed: int) -> Vectors:
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads.query, heads.kv, heads.kv)
    return Vectors(*(torch.randn(count, size, d, generator=generator) for size in sizes))


def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One row q [heads, d] over the keys it sees [n, kv, d], in float64: [heads, d]."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[0] // k.shape[1]
    k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    weights = (torch.einsum("hd,nhd->hn", q, k) * q.shape[-1] ** -0.5).softmax(dim=-1)
    return torch.einsum("hn,nhd->hd", weights, v)


@dataclass
class Part:
    """Rows of one sequence in a launch: positions start …, or a tree that hangs below `start`.

    With `parents`, row 0 is the root at `start` and row i node i, below `parents[i - 1]`.
    """

    vectors: Vectors
    """Of these rows alone."""
    table: list[int]
    start: int
    parents: list[int] | None = None

    def way(self, row: int) -> list[int]:
        """Rows from the root to this one."""
        way = [row]
        while way[0]:
            way.insert(0, (self.parents or [])[way[0] - 1])
        return way


class Pool:
    """A pool that holds NaN wherever nothing was written."""

    def __init__(self, heads: Heads, d: int, page_size: int, pages: int = 24) -> None:
        self.heads, self.d, self.page_size = heads, d, page_size
        self.store = KVPool(
            layers=1,
            pages=pages,
            kv_heads=heads.kv,
            head_dim=d,
            page_size=page_size,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.keys, self.values = self.store.keys(0), self.store.values(0)
        self.keys.fill_(torch.nan)
        self.values.fill_(torch.nan)

    def launch(
        self, parts: Sequence[Part], *, first: int = 0, window: int | None = None
    ) -> list[Tensor]:
        """Write the rows' keys and attend; outputs [r, heads, d] of each part."""
        rows = self._rows(parts, first)
        made = plan(rows, self.page_size, self.heads, window)
        self.store.clear_unwritten(made)
        q, k, v = (
            torch.cat([part.vectors[i] for part in parts]) for i in range(len(Vectors._fields))
        )
        write_kv(self.keys, self.values, k, v, places(rows.slots, self.page_size))
        out = made.attend(q, self.keys, self.values, self.d**-0.5)
        return list(out.split([len(part.vectors.q) for part in parts]))

    def fill(self, vectors: Vectors, table: list[int], first: int = 0) -> None:
        """Write keys at positions first …, as earlier launches would have."""
        at = torch.arange(first, first + len(vectors.k))
        slots = self._slots(table, at)
        write_kv(self.keys, self.values, vectors.k, vectors.v, places(slots, self.page_size))

    def _slots(self, table: list[int], at: Tensor) -> Tensor:
        return torch.tensor(table)[at // self.page_size] * self.page_size + at % self.page_size

    def _rows(self, parts: Sequence[Part], first: int) -> Rows:
        counts = [len(part.vectors.q) for part in parts]
        own = [part.start + torch.arange(n) for part, n in zip(parts, counts, strict=True)]
        widest = max(len(part.table) for part in parts)
        last = [
            at if part.parents is None else part.start + torch.tensor(_depths(part))
            for part, at in zip(parts, own, strict=True)
        ]
        return Rows(
            positions=torch.cat(last),
            slots=torch.cat([self._slots(p.table, at) for p, at in zip(parts, own, strict=True)]),
            sequences=torch.arange(len(parts)).repeat_interleave(torch.tensor(counts)),
            last=torch.cat(last),
            page_table=torch.tensor([p.table + [0] * (widest - len(p.table)) for p in parts]),
            base=torch.tensor([part.start for part in parts]),
            tail=self._tail(parts, counts),
            first=first,
        )

    def _tail(self, parts: Sequence[Part], counts: list[int]) -> Tensor | None:
        if all(part.parents is None for part in parts):
            return None
        longest = max(max(_depths(part)) for part in parts if part.parents is not None) + 1
        tail = torch.full((sum(counts), longest), -1)
        row = 0
        for part, count in zip(parts, counts, strict=True):
            for node in range(count if part.parents is not None else 0):
                way = torch.tensor(part.way(node))
                tail[row + node, : len(way)] = self._slots(part.table, part.start + way)
            row += count
        return tail


def _depths(part: Part) -> list[int]:
    return [len(part.way(row)) - 1 for row in range(len(part.vectors.q))]
