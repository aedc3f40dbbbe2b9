import pytest
import torch
from hypothesis import given

from alula.errors import UsageError
from alula.speculation.tree import DraftTree, TreeShape, chain, parse_shape, path_tokens, paths
from draft_trees import trees


def test_a_chain_hangs_every_node_below_the_one_before():
    tree = chain(torch.tensor([[5, 6, 7], [8, -1, -1]]))
    assert tree.parents.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert tree.nodes == 3


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("chain:4", TreeShape(4, 1, 4)),
        ("chain:0", TreeShape(0, 1, 0)),
        ("tree:4x4:16", TreeShape(4, 4, 16)),
        ("tree:2×3:12", TreeShape(2, 3, 12)),
    ],
)
def test_a_shape_is_read_and_written_alike(text, shape):
    assert parse_shape(text) == shape
    assert parse_shape(str(shape)) == shape


@pytest.mark.parametrize(
    "text", ["", "chain", "chain:-1", "tree:4x4", "tree:4x4:3", "tree:2x2:7", "tree:0x2:0", "4"]
)
def test_a_shape_that_cannot_be_built_is_refused(text):
    with pytest.raises(UsageError):
        parse_shape(text)


def test_a_refusal_names_all_that_is_taken():
    with pytest.raises(UsageError) as refused:
        parse_shape("eagle", ("off", "ngram"))
    assert "off, ngram, chain:K or tree:DEPTHxWIDTH:NODES" in refused.value.why


@given(trees())
def test_paths_lead_from_the_root_to_each_node(tree: DraftTree):
    depths, way = paths(tree, tree.nodes)
    for line, parents in enumerate(tree.parents.tolist()):
        for node in range(tree.nodes + 1):
            expected = [node]
            while expected[0]:
                expected.insert(0, parents[expected[0] - 1])
            padding = [-1] * (tree.nodes + 1 - len(expected))
            assert way[line, node].tolist() == expected + padding
            assert depths[line, node] == len(expected) - 1


@given(trees())
def test_path_tokens_are_those_of_the_nodes_on_the_way(tree: DraftTree):
    _, way = paths(tree, tree.nodes)
    found = path_tokens(tree, way)
    for line, tokens in enumerate(tree.tokens.tolist()):
        for node in range(tree.nodes + 1):
            expected = [tokens[i - 1] if i > 0 else -1 for i in way[line, node].tolist()[1:]]
            assert found[line, node].tolist() == expected
