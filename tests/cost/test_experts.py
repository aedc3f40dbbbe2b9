"""Distinct experts against counting."""

from __future__ import annotations

import random
import time

import pytest

from alula.cost.experts import busiest, distinct


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 8.0), (2, 15.8), (4, 31.0), (8, 59.5), (16, 109.8), (64, 284.2)]
)
def test_distinct_experts_of_384(rows: int, expected: float) -> None:
    assert distinct(384, 8, rows) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("rows", "expected"), [(1, 2.58), (16, 18.2)])
def test_the_busiest_rank_has_more_than_its_share(rows: int, expected: float) -> None:
    assert busiest(384, 8, rows, 8) == pytest.approx(expected, abs=0.1)
    assert busiest(384, 8, rows, 8) > distinct(384, 8, rows) / 8


@pytest.mark.parametrize(("count", "active", "rows", "ranks"), [(64, 4, 3, 4), (24, 2, 5, 3)])
def test_both_agree_with_drawing(count: int, active: int, rows: int, ranks: int) -> None:
    draw = random.Random(5)
    sizes, most = 0, 0
    for _ in range(4000):
        chosen: set[int] = set()
        for _ in range(rows):
            chosen |= set(draw.sample(range(count), active))
        sizes += len(chosen)
        each = count // ranks
        most += max(sum(e // each == rank for e in chosen) for rank in range(ranks))
    assert distinct(count, active, rows) == pytest.approx(sizes / 4000, rel=0.02)
    assert busiest(count, active, rows, ranks) == pytest.approx(most / 4000, rel=0.03)


def test_all_experts_are_read_in_the_end() -> None:
    assert distinct(16, 2, 1000) == pytest.approx(16)
    assert busiest(16, 2, 1000, 4) == pytest.approx(4)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_busiest_rank_is_found_at_once(ranks: int) -> None:
    """Two ranks of 192 experts once took ten seconds for the chains of one estimate."""
    started = time.process_time()
    for rows in range(1, 33):
        assert busiest(384, 8, rows, ranks) >= distinct(384, 8, rows) / ranks
    assert time.process_time() - started < 5
