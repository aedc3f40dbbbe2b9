"""What a round computes and where, on one line's draft tree."""

from __future__ import annotations

import torch
from torch import Tensor

from alula.ops.lines import LineState
from alula.ops.prepare import Prepared, prepare
from alula.ops.rope import Rotation, rotary_table

ANGLES = rotary_table(torch.tensor([1.0, 0.1]), torch.arange(12))


def line(*tokens: int, known: int = 7, parents: tuple[int, ...] = (0, 0, 1, 3)) -> LineState:
    """One line between two others, its pages in no order, with 4 keys a page."""

    def beside(row: list[int]) -> Tensor:
        return torch.tensor([[0] * len(row), row, [0] * len(row)])

    return LineState(
        history=beside([10, 11, 12, 13, 14, 15, 16, 17, 0]),
        lengths=torch.tensor([1, known, 1]),
        limits=torch.tensor([1, 9, 1]),
        stop_ids=beside([-1]),
        page_table=beside([5, 2, 9]),
        draft_tokens=beside([*tokens]),
        draft_parents=beside([*parents]),
        output_counts=None,
    )


def made(state: LineState, nodes: int = 4, depth: int = 3, *, has_tail: bool = True) -> Prepared:
    return prepare(torch.tensor([1]), state, ANGLES, 4, nodes, depth, has_tail=has_tail)


def test_nodes_lie_behind_the_root_in_order_and_are_turned_by_depth() -> None:
    found = made(line(20, 21, 22, -1))
    assert found.ids.tolist() == [16, 20, 21, 22, 0]
    assert found.depths.tolist() == [[0, 1, 1, 2, 3]]
    assert found.rows.positions.tolist() == found.rows.last.tolist() == [6, 7, 7, 8, 9]
    assert found.following.tolist() == [7, 8, 8, 9, 10]
    assert found.rows.slots.tolist() == [10, 11, 36, 37, 38]
    assert found.places.pages.tolist() == [2, 2, 9, 9, 9]
    assert found.places.lanes.tolist() == [2, 3, 0, 1, 2]
    assert found.rows.base.tolist() == [6]
    assert found.rows.page_table.tolist() == [[5, 2, 9]]


def test_a_node_knows_its_way() -> None:
    found = made(line(20, 21, 22, -1))
    assert found.path.tolist() == [
        [[-1, -1, -1], [20, -1, -1], [21, -1, -1], [20, 22, -1], [20, 22, -1]]
    ]
    assert found.rows.tail is not None
    assert found.rows.tail.tolist() == [
        [10, -1, -1, -1],
        [10, 11, -1, -1],
        [10, 36, -1, -1],
        [10, 11, 37, -1],
        [10, 11, 37, 38],
    ]
    assert made(line(20, 21, 22, -1), has_tail=False).rows.tail is None


def test_the_host_is_told_of_the_nodes_that_are_used() -> None:
    assert made(line(20, 21, 22, -1)).drafted.tolist() == [[3, 2]]
    assert made(line(20, 21, 22, 23)).drafted.tolist() == [[4, 3]]
    assert made(line(-1, -1, -1, -1)).drafted.tolist() == [[0, 0]]


def test_without_a_draft_the_root_is_all_there_is() -> None:
    found = made(line(20, 21, 22, 23), nodes=0, depth=0)
    assert found.ids.tolist() == [16]
    assert found.path.shape == (1, 1, 0)
    assert found.drafted.tolist() == [[0, 0]]


def test_rows_are_numbered_sequence_by_sequence() -> None:
    at = torch.tensor([1, 2, 2])
    found = prepare(at, line(20, 21, 22, 23), ANGLES, 4, 1, 1, has_tail=False)
    assert found.lines.tolist() == [1, 1, 2, 2, 2, 2]
    assert found.rows.sequences.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.numbers.tolist() == [0, 1] * 3
    assert found.row_numbers.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_rotations_are_those_of_the_positions() -> None:
    """To the bit, so that a row of a round and the same row of a prompt are equal."""
    frequencies = 1e4 ** -(torch.arange(64) / 64)
    angles = rotary_table(frequencies, torch.arange(999))
    for known in (3, 7):
        found = prepare(
            torch.tensor([1]), line(1, 1, 1, 1, known=known), angles, 4, 4, 3, has_tail=True
        )
        assert same(found.rotation, rotary_table(frequencies, found.rows.positions))
    positions = torch.tensor([998, 5, 404, 777, 1])
    picked = Rotation(angles.cos[positions], angles.sin[positions])
    assert same(picked, rotary_table(frequencies, positions))


def same(one: Rotation, other: Rotation) -> bool:
    return torch.equal(one.cos, other.cos) and torch.equal(one.sin, other.sin)
