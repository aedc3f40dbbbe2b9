import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.errors import UsageError
from alula.speculation.drafter import DraftContext
from alula.speculation.ngram import NgramDrafter
from alula.speculation.tree import TreeShape


def _context(histories: list[list[int]], drafting: list[int] | None = None, spare: int = 3):
    width = max(map(len, histories)) + spare
    garbage = [[7, 1, 0] * width] * len(histories)  # behind a length anything may stand
    rows = [
        known + noise[: width - len(known)] for known, noise in zip(histories, garbage, strict=True)
    ]
    nothing = torch.zeros(0, dtype=torch.int64)
    return DraftContext(
        history=torch.tensor(rows),
        lengths=torch.tensor([len(known) for known in histories]),
        page_table=torch.zeros(len(histories), 1, dtype=torch.int64),
        keys=torch.zeros(len(histories), dtype=torch.int64),
        temperatures=torch.zeros(len(histories)),
        features=None,
        feature_sequences=nothing,
        feature_positions=nothing,
        drafting=torch.tensor(range(len(histories)) if drafting is None else drafting),
        latest=nothing,
        greedy=True,
    )


def _slow_search(known: list[int], depth: int, longest: int, shortest: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        ends = [
            end
            for end in range(n, len(known))
            if len(known) >= n and known[end - n : end] == known[-n:]
        ]
        if ends:
            full = [end for end in ends if end + depth <= len(known)]
            draft = known[(full or ends)[-1] :][:depth]
            return draft + [-1] * (depth - len(draft))
    return [-1] * depth


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_the_draft_equals_a_plain_search(histories, depth, shortest, more):
    drafter = NgramDrafter(TreeShape(5, 1, 5), longest=shortest + more, shortest=shortest)
    tree = drafter.propose(_context(histories), depth)
    expected = [_slow_search(known, depth, shortest + more, shortest) for known in histories]
    assert tree.tokens.tolist() == expected
    assert tree.parents[0].tolist() == list(range(depth))


def test_a_longer_match_wins_over_a_later_one():
    known = [1, 2, 3, 8, 0, 2, 3, 9, 0, 1, 2, 3]
    assert NgramDrafter(TreeShape(1, 1, 1)).propose(_context([known]), 1).tokens.tolist() == [[8]]


def test_a_full_continuation_wins_over_the_most_recent():
    known = [1, 2, 3, 4, 1, 2, 5, 1, 2]
    draft = NgramDrafter(TreeShape(4, 1, 4)).propose(_context([known]), 4)
    assert draft.tokens.tolist() == [[3, 4, 1, 2]]


def test_only_sequences_that_draft_get_one():
    draft = NgramDrafter(TreeShape(2, 1, 2)).propose(_context([[1, 2, 1, 2]] * 3, [1]), 2)
    assert draft.tokens.tolist() == [[-1, -1], [1, 2], [-1, -1]]


def test_depth_zero_drafts_nothing():
    assert NgramDrafter(TreeShape(2, 1, 2)).propose(_context([[1, 2, 1, 2]]), 0).nodes == 0


def test_a_tree_is_refused():
    with pytest.raises(UsageError):
        NgramDrafter(TreeShape(2, 2, 4))
    with pytest.raises(UsageError):
        NgramDrafter(TreeShape(2, 1, 2), longest=1, shortest=2)


def test_a_look_up_in_a_long_history_is_cheap():
    context = _context([torch.randint(0, 50, (2048,)).tolist()])
    drafter = NgramDrafter(TreeShape(4, 1, 4))
    times = []
    for _ in range(50):
        start = time.perf_counter()
        drafter.propose(context, 4)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3  # 0.3 ms where nothing else runs
