"""The pool moves, clears and hands out memory as it says."""

from __future__ import annotations

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.cache.pool import KVPool
from alula.errors import ResourceError
from alula.ops.attention import Heads, plan
from alula.ops.rows import Rows


def pool(pages: int = 4, page_size: int = 4, layers: int = 2) -> KVPool:
    """Every number in it differs from all others."""
    made = KVPool(
        layers=layers,
        pages=pages,
        kv_heads=2,
        head_dim=3,
        page_size=page_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for layer in range(layers):
        for part in (made.keys(layer), made.values(layer)):
            assert not part.any()
            part.copy_(torch.randn_like(part))
    return made


def by_slot(made: KVPool) -> torch.Tensor:
    """[slots, everything a slot holds]."""
    layers = range(2)
    parts = [part for i in layers for part in (made.keys(i), made.values(i))]
    return torch.stack(parts).permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1)


@st.composite
def commits(draw):
    """Two sequences of 8 slots each: pages, positions of roots, paths, how much is kept."""
    pages = draw(st.permutations(range(4)))
    last = draw(st.lists(st.integers(0, 3), min_size=2, max_size=2))
    nodes = st.lists(st.integers(1, 4), unique=True, max_size=4)
    paths = [[0, *sorted(draw(nodes))] for _ in last]
    counts = [draw(st.integers(0, len(path))) for path in paths]
    padded = [path + [-1] * (5 - len(path)) for path in paths]
    parts = ([pages[:2], pages[2:]], last, padded, counts)
    return tuple(torch.tensor(part) for part in parts)


@given(commits())
def test_accepted_nodes_are_all_read_before_any_is_written(case):
    table, last, paths, counts = case
    made = pool()
    before, expected = by_slot(made), by_slot(made)
    made.commit(table, last, paths, counts)
    for sequence in range(2):
        for step in range(counts[sequence]):
            places = last[sequence] + paths[sequence, step], last[sequence] + step
            source, target = (table[sequence, place // 4] * 4 + place % 4 for place in places)
            expected[target] = before[source]
    assert torch.equal(by_slot(made), expected)


def chain(last: int, table: list[int], first: int = 0) -> Rows:
    at = torch.tensor([last])
    zero = torch.zeros(1, dtype=torch.int64)
    return Rows(at, at, zero, at, torch.tensor([table]), base=at, first=first)


@pytest.mark.parametrize(
    ("last", "first", "cleared"),
    [
        (4, 0, [13, 14, 15]),
        (7, 0, []),
        (5, 2, [4, 5, 14, 15]),
        (7, 5, [4, 5, 6, 7, 12]),
    ],
)
def test_only_lanes_that_are_read_and_hold_no_key_are_cleared(last, first, cleared) -> None:
    """The sequence owns pages 1 and 3: slots 4 … 7, then 12 … 15."""
    made = pool()
    wanted = by_slot(made)
    wanted[cleared] = 0
    made.clear_unwritten(plan(chain(last, [1, 3], first), 4, Heads(2, 2)))
    assert torch.equal(by_slot(made), wanted)


def test_memory_is_taken_as_it_is_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    made = KVPool(
        layers=1,
        pages=1 << 14,
        kv_heads=8,
        head_dim=64,
        page_size=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert made.keys(0).numel() * 4 * 2 == 1 << 30
    assert process.memory_info().rss - before < 64 << 20
    made.keys(0)[:2048] = 1
    assert process.memory_info().rss - before > 64 << 20


def test_a_cache_beyond_all_memory_is_refused_with_its_size() -> None:
    with pytest.raises(ResourceError, match=r"key-value cache of .* GB"):
        KVPool(
            layers=1,
            pages=1 << 40,
            kv_heads=8,
            head_dim=64,
            page_size=32,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
