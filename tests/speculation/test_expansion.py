import pytest
import torch
from alula.speculation.expansion import Expansion
from hypothesis import given
from hypothesis import strategies as st

from alula.speculation.tree import TreeShape, nodes_to, paths


@st.composite
def expansions(draw) -> tuple[TreeShape, Expansion]:
    """Candidates with few distinct probabilities, so that many scores are equal."""
    depth, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    nodes = draw(st.integers(1, width + (depth - 1) * width**2))
    expansion = Expansion(2, width, torch.device("cpu"))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    for level in range(depth):
        shape = (2, 1 if level == 0 else width, width)
        gains = -torch.randint(0, draw(st.integers(1, 4)), shape, generator=generator).float()
        tokens = torch.randint(0, 1000, shape, generator=generator)
        expansion.add(tokens, gains)
    return TreeShape(depth, width, nodes), expansion


@given(expansions())
def test_a_parent_comes_before_its_children(case):
    shape, expansion = case
    tree = expansion.tree(shape.nodes)
    assert tree.nodes == shape.nodes
    assert (tree.parents < torch.arange(1, shape.nodes + 1)).all()
    depths, _ = paths(tree, shape.depth)
    assert (depths[:, 1:] >= 1).all()
    assert (depths[:, 2:] >= depths[:, 1:-1]).all()
    assert depths.max() <= shape.depth


def test_equal_scores_keep_a_tree_connected():
    """A certain child scores what its parent scores; the parent is kept first."""
    expansion = Expansion(1, 16, torch.device("cpu"))
    for level in range(4):
        shape = (1, 1 if level == 0 else 16, 16)
        expansion.add(torch.arange(shape[1] * 16).view(shape), torch.zeros(shape))
    tree = expansion.tree(20)
    assert tree.parents.tolist() == [[0] * 16 + [1] * 4]
    assert tree.tokens.tolist() == [[*range(16), *range(4)]]


def test_the_best_path_is_followed():
    expansion = Expansion(1, 2, torch.device("cpu"))
    expansion.add(torch.tensor([[[5, 6]]]), torch.tensor([[[-2.0, -0.5]]]))
    assert expansion.frontier.tokens.tolist() == [[6, 5]]
    expansion.add(torch.tensor([[[7, 8], [9, 4]]]), torch.tensor([[[-0.1, -3.0], [-0.1, -0.2]]]))
    tree = expansion.tree(3)
    assert tree.tokens.tolist() == [[5, 6, 7]]
    assert tree.parents.tolist() == [[0, 0, 2]]


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
def test_a_cut_shape_has_room_for_what_is_expanded(shape, depth, nodes):
    assert nodes_to(shape, depth) == nodes
