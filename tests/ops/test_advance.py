"""What a round emits is cut at stops and limits, and the lines stand there then."""

from __future__ import annotations

import pytest
import torch

from alula.ops.advance import Advanced, advance, settle
from alula.ops.lines import LineState
from alula.ops.walk import Path

STOP = 9


def state(*, limit: int = 20, penalised: bool = False) -> LineState:
    """Two lines, of which the second knows 5 tokens, and a spare one."""
    return LineState(
        history=torch.zeros(3, 21, dtype=torch.int64),
        lengths=torch.tensor([2, 5, 1]),
        limits=torch.tensor([20, limit, 1]),
        stop_ids=torch.tensor([[-1, -1], [STOP, -1], [-1, -1]]),
        page_table=torch.zeros(3, 1, dtype=torch.int64),
        draft_tokens=torch.zeros(3, 0, dtype=torch.int64),
        draft_parents=torch.zeros(3, 0, dtype=torch.int64),
        output_counts=torch.zeros(3, 10, dtype=torch.int32) if penalised else None,
    )


def settled(known: LineState, *tokens: int, room: int = 4) -> Advanced:
    """The second line, and the spare one twice, after a path that emits `tokens`."""
    words = torch.tensor([[*tokens, *[-1] * (room - len(tokens))], [3] * room, [3] * room])
    path = Path(torch.zeros_like(words), words, torch.tensor([len(tokens), room, room]))
    return settle(torch.tensor([1, 2, 2]), known, path, torch.tensor([[6, 3], [0, 0], [0, 0]]))


def test_tokens_are_appended_and_counted() -> None:
    known = state(penalised=True)
    found = settled(known, 4, 7, 4)
    assert found.emission.counts.tolist() == [3, 0, 0]
    assert known.lengths.tolist() == [2, 8, 1]
    assert known.history[1].tolist() == [0] * 5 + [4, 7, 4] + [0] * 13
    assert known.limits.tolist() == [20, 20, 1]
    assert known.output_counts is not None
    assert known.output_counts[1].tolist() == [0, 0, 0, 0, 2, 0, 0, 1, 0, 0]
    assert found.columns[0].tolist() == [6, 3, 0, 0, 3, 3, 4, 7, 4, -1]


def test_nothing_comes_behind_a_stop_and_the_line_emits_no_more() -> None:
    known = state()
    found = settled(known, 4, STOP, 4)
    assert found.emission.tokens[0].tolist() == [4, STOP, -1, -1]
    assert found.columns[0].tolist() == [6, 3, 1, 0, 3, 2, 4, STOP, -1, -1]
    assert known.limits.tolist() == [20, 7, 1]
    again = settled(known, 4, 4)
    assert again.emission.counts.tolist() == [0, 0, 0]
    assert again.emission.full.tolist() == [True] * 3
    assert known.lengths.tolist() == [2, 7, 1]


@pytest.mark.parametrize(("limit", "kept"), [(6, 1), (7, 2), (8, 3), (9, 3)])
def test_a_limit_cuts_and_says_so(limit: int, kept: int) -> None:
    known = state(limit=limit)
    found = settled(known, 4, 5, STOP)
    assert found.emission.counts[0] == kept
    assert found.emission.full.tolist() == [limit <= 8, True, True]
    assert found.emission.stopped.tolist() == [kept == 3, False, False]


def test_the_spare_line_stays_as_it_is() -> None:
    known = state()
    found = settled(known, 4)
    assert found.emission.tokens[1:].tolist() == [[-1] * 4] * 2
    assert (known.lengths[2], known.limits[2]) == (1, 1)
    assert not known.history[2].any()


def test_a_draft_is_walked_by_the_choices() -> None:
    known = state()
    tokens, parents = torch.tensor([[4, 5, 6]]), torch.tensor([[0, 0, 2]])
    choice = torch.tensor([5, 0, 6, 8])
    drafted = torch.tensor([[3, 2]])
    found = advance(torch.tensor([1]), known, choice, tokens, parents, drafted)
    assert found.path.rows.tolist() == [[0, 2, 3, -1]]
    assert found.emission.tokens.tolist() == [[5, 6, 8, -1]]
    assert known.history[1, 5:8].tolist() == [5, 6, 8]
