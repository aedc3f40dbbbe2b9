"""Lines hold what the host tells them, entry by entry."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.engine.lines import Lines

COUNT, PAGES, SPARE_PAGE = 5, 9, 77


def lines() -> Lines:
    return Lines(
        count=COUNT,
        max_length=64,
        pages_per_line=PAGES,
        draft_nodes=0,
        vocab_size=10,
        spare_page=SPARE_PAGE,
        device=torch.device("cpu"),
    )


@st.composite
def updates(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    """New entries of some lines, each line once."""
    chosen = draw(st.lists(st.integers(0, COUNT - 1), unique=True))
    found = []
    for line in chosen:
        first = draw(st.integers(0, PAGES))
        pages = draw(st.lists(st.integers(0, 999), max_size=PAGES - first))
        found.append((line, first, pages))
    return found


@given(st.lists(updates(), max_size=4))
def test_the_new_entries_of_page_tables_are_written_and_no_other(
    steps: list[list[tuple[int, int, list[int]]]],
) -> None:
    made = lines()
    expected = [[SPARE_PAGE] * PAGES for _ in range(COUNT + 1)]
    for step in steps:
        made.set_pages(step)
        for line, first, pages in step:
            expected[line][first : first + len(pages)] = pages
        assert made.page_table.tolist() == expected
