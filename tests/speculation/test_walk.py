import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.speculation.tree import DraftTree, chain
from alula.speculation.walk import walk
from draft_trees import trees


def _slow_walk(tokens: list[int], parents: list[int], choice: list[int]):
    here, rows, emitted = 0, [], []
    while True:
        rows.append(here)
        emitted.append(choice[here])
        children = [
            node
            for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1)
            if parent == here and token == choice[here] and token >= 0
        ]
        if not children:
            return rows, emitted
        here = children[0]


@st.composite
def walks(draw) -> tuple[DraftTree, torch.Tensor]:
    tree = draw(trees())
    count = tree.tokens.shape[0] * (tree.nodes + 1)
    choice = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    return tree, torch.tensor(choice).view(-1, tree.nodes + 1)


@given(walks())
def test_the_walk_equals_a_slow_one(case):
    tree, choice = case
    path = walk(tree, choice)
    for line in range(len(choice)):
        rows, emitted = _slow_walk(*(part[line].tolist() for part in (*tree, choice)))
        padding = [-1] * (tree.nodes + 1 - len(rows))
        assert path.rows[line].tolist() == rows + padding
        assert path.tokens[line].tolist() == emitted + padding
        assert path.length[line] == len(rows)


def test_of_equal_siblings_the_first_is_taken():
    tree = DraftTree(torch.tensor([[4, 4, 6, 7]]), torch.tensor([[0, 0, 1, 2]]))
    path = walk(tree, torch.tensor([[4, 6, 7, 9, 9]]))
    assert path.rows.tolist() == [[0, 1, 3, -1, -1]]
    assert path.tokens.tolist() == [[4, 6, 9, -1, -1]]


def test_an_unused_node_is_never_taken():
    tree = DraftTree(torch.tensor([[-1, -1]]), torch.tensor([[0, 0]]))
    path = walk(tree, torch.tensor([[-1, 5, 5]]))
    assert path.length.tolist() == [1]


def test_without_a_draft_only_the_bonus_is_emitted():
    path = walk(chain(torch.zeros(2, 0, dtype=torch.int64)), torch.tensor([[3], [4]]))
    assert path.tokens.tolist() == [[3], [4]]
    assert path.rows.tolist() == [[0], [0]]
    assert path.length.tolist() == [1, 1]
