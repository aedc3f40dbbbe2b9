"""Which candidates a draft tree keeps, and how it is numbered."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from alula.ops.expand import Drafts, Frontier, Growth, Roots, candidates, finish, grow
from alula.speculation.tree import DraftTree, TreeShape, nodes_to, paths

VOCABULARY, ROOM = 20, 70


class Grown(NamedTuple):
    tree: DraftTree
    frontiers: list[Frontier]


def expand(shape: TreeShape, levels: list[Tensor], limits: tuple[int, int] = (99, 99)) -> Grown:
    """Trees of two greedy sequences, from every level's logits."""
    numbers = torch.arange(2)
    roots = Roots(
        lines=numbers.flip(0),
        lengths=torch.tensor([5, 9]),
        limits=torch.tensor(limits),
        keys=numbers,
        temperatures=torch.zeros(2),
        page_table=torch.arange(8).view(2, 4),
    )
    growth = Growth(shape.width, torch.arange(VOCABULARY), 1.0, None, 32, 12, 4)
    drafts = Drafts(torch.full((2, ROOM), 7), torch.full((2, ROOM), 7))
    found, frontiers = candidates(growth, 2, shape.depth), [None]
    for logits in levels[:-1]:
        frontiers.append(grow(logits, roots, growth, found, frontiers[-1]))
    finish(levels[-1], roots, growth, found, frontiers[-1], shape.nodes, drafts)
    assert (drafts.tokens[:, shape.nodes :] == -1).all()
    assert (drafts.parents[:, shape.nodes :] == 0).all()
    cut = slice(shape.nodes)
    return Grown(DraftTree(drafts.tokens[:, cut], drafts.parents[:, cut]), frontiers[1:])


@st.composite
def expansions(draw: st.DrawFn) -> tuple[TreeShape, list[Tensor]]:
    """Logits with few distinct values, so that many scores are equal."""
    depth, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    nodes = draw(st.integers(depth, width + (depth - 1) * width**2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    most = draw(st.integers(1, 40))
    levels = [
        torch.randint(0, most, (2 * (width if level else 1), VOCABULARY), generator=generator)
        for level in range(depth)
    ]
    return TreeShape(depth, width, nodes), [logits.float() for logits in levels]


@given(expansions())
def test_a_parent_comes_before_its_children(case: tuple[TreeShape, list[Tensor]]) -> None:
    shape, levels = case
    tree = expand(shape, levels).tree
    assert (tree.tokens >= 0).all()
    assert (tree.parents < torch.arange(1, shape.nodes + 1)).all()
    depths, _ = paths(tree, shape.depth)
    assert (depths[:, 1:] >= 1).all()
    assert (depths[:, 2:] >= depths[:, 1:-1]).all()
    assert depths.max() <= shape.depth


def certain(*tokens: int) -> Tensor:
    """Logits that leave no doubt about the next token."""
    logits = torch.full((len(tokens), VOCABULARY), -1e9)
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 0.0
    return logits


def test_equal_scores_keep_a_tree_connected() -> None:
    """A certain child scores what its parent scores; the parent is kept first."""
    levels = [certain(3, 3), certain(4, 9, 4, 9), certain(5, 9, 5, 9)]
    grown = expand(TreeShape(3, 2, 3), levels)
    assert grown.tree.tokens.tolist() == [[3, 4, 5]] * 2
    assert grown.tree.parents.tolist() == [[0, 1, 2]] * 2


def likely(*wanted: dict[int, float]) -> Tensor:
    """Logits of the given log probabilities, the rest shared by all other tokens."""
    rows = []
    for row in wanted:
        probability = torch.tensor(list(row.values())).exp()
        rest = (1 - probability.sum()) / (VOCABULARY - len(row))
        logits = torch.full((VOCABULARY,), float(rest.log()))
        logits[list(row)] = probability.log()
        rows.append(logits)
    return torch.stack(rows)


def test_the_best_path_is_followed() -> None:
    first = {5: -2.1, 6: -0.2}
    second = [{7: -0.2, 8: -2.0}, {9: -0.9, 4: -1.0}]
    grown = expand(TreeShape(2, 2, 4), [likely(first, first), likely(*second, *second)])
    assert grown.frontiers[0].tokens.tolist() == [6, 5] * 2
    assert grown.tree.parents.tolist() == [[0, 0, 1, 1]] * 2
    assert grown.tree.tokens.tolist() == [[6, 5, 7, 8]] * 2


def test_of_equal_tokens_the_lower_ids_are_drafted() -> None:
    tree = expand(TreeShape(1, 3, 3), [torch.zeros(2, VOCABULARY)]).tree
    assert tree.tokens.tolist() == [[0, 1, 2]] * 2


def test_what_has_ended_gets_no_draft() -> None:
    tree = expand(TreeShape(1, 2, 2), [torch.zeros(2, VOCABULARY)], limits=(5, 10)).tree
    assert tree.tokens.tolist() == [[-1, -1], [0, 1]]


def test_a_frontier_lies_behind_the_pages_until_it_is_numbered() -> None:
    levels = [torch.zeros(2 * (2 if level else 1), VOCABULARY) for level in range(3)]
    first, second = expand(TreeShape(3, 2, 4), levels).frontiers
    # Line 1 comes first, of length 9, its root in lane 0 of its third page; then line 0.
    assert first.tail.tolist() == [[8, 32], [8, 33], [20, 44], [20, 45]]
    assert second.tail[:, -1].tolist() == [34, 35, 46, 47]
    assert second.last.tolist() == [10, 10, 6, 6]
    assert second.positions.tolist() == [9, 9, 5, 5]


@pytest.mark.parametrize(
    ("shape", "depth", "nodes"),
    [
        (TreeShape(4, 1, 4), 3, 3),
        (TreeShape(4, 1, 4), 9, 4),
        (TreeShape(4, 4, 16), 0, 0),
        (TreeShape(4, 4, 16), 1, 4),
        (TreeShape(4, 4, 16), 2, 16),
        (TreeShape(3, 4, 84), 3, 36),
    ],
)
def test_a_cut_shape_has_room_for_what_is_expanded(
    shape: TreeShape, depth: int, nodes: int
) -> None:
    assert nodes_to(shape, depth) == nodes
