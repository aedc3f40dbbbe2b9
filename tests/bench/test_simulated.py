"""Forced acceptance: as much as was asked for, along one path, and out of reach of requests."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from alula.bench.simulated import SimulatedWalk, parse_rates
from alula.engine.llm import LLM
from alula.engine.settings import Settings
from alula.errors import UsageError
from alula.sampling.params import SamplingParams
from alula.speculation.tree import DraftTree, TreeShape, chain, paths

CPU = torch.device("cpu")
CHAIN = TreeShape(3, 1, 3)
TREE = TreeShape(3, 2, 7)
PARENTS = torch.tensor([[0, 0, 1, 1, 2, 5, 5]]).repeat(4, 1)
"""A tree that is deepest below its second child."""
TOKENS = torch.arange(28).view(4, 7) + 100


def walks(shape: TreeShape, tree: DraftTree, rates: list[float], rounds: int) -> torch.Tensor:
    """Emitted tokens by round and sequence."""
    walk = SimulatedWalk(rates, shape, len(tree.tokens), CPU)
    choice = torch.full((len(tree.tokens), tree.nodes + 1), 7)
    return torch.stack([walk(tree, choice).length for _ in range(rounds)])


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=str)
def test_levels_are_accepted_as_often_as_asked(shape: TreeShape) -> None:
    tree = DraftTree(TOKENS, PARENTS) if shape == TREE else chain(TOKENS[:, :3])
    lengths = walks(shape, tree, [0.8, 0.5, 0.25], 1000).float()
    for depth, survival in ((1, 0.8), (2, 0.4), (3, 0.1)):
        assert float((lengths > depth).float().mean()) == pytest.approx(survival, abs=0.03)


def test_rounds_and_sequences_draw_for_themselves() -> None:
    lengths = walks(CHAIN, chain(TOKENS[:, :3]), [0.5, 0.5, 0.5], 200)
    for line in range(3):
        assert not torch.equal(lengths[:, line], lengths[:, line + 1])
    assert not torch.equal(lengths[:100], lengths[100:])


@pytest.mark.parametrize("shape", [CHAIN, TREE, TreeShape(4, 4, 32)], ids=str)
def test_what_is_timed_is_a_walk_down_a_draft_of_the_shape(shape: TreeShape) -> None:
    down = SimulatedWalk([1.0] * shape.depth, shape, 3, CPU).trial()
    for _ in range(3):
        assert down().length.tolist() == [shape.depth + 1] * 3
    assert SimulatedWalk([1.0, 0.0], shape, 1, CPU).trial()().length.tolist() == [2]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_path_is_one_of_the_trees_and_its_tokens_are_emitted(rate: float) -> None:
    tree = DraftTree(TOKENS, PARENTS)
    choice = torch.arange(32).view(4, 8)
    path = SimulatedWalk([rate] * 3, TREE, 4, CPU)(tree, choice)
    _, way = paths(tree, 3)
    steps = 4 if rate else 1
    assert path.length.tolist() == [steps] * 4
    nodes = way[0, 6] if rate else torch.tensor([0])
    for line in range(4):
        rows = path.rows[line, :steps]
        assert torch.equal(rows, nodes)
        drafted = TOKENS[line, rows[1:] - 1].tolist()
        assert path.tokens[line, :steps].tolist() == [*drafted, int(choice[line, rows[-1]])]


def test_a_node_that_is_not_there_ends_the_path() -> None:
    tokens = torch.tensor([[5, -1, -1]])
    path = SimulatedWalk([1.0] * 3, CHAIN, 1, CPU)(chain(tokens), torch.tensor([[1, 2, 3, 4]]))
    assert path.tokens.tolist() == [[5, 2, -1, -1]]
    path = SimulatedWalk([1.0] * 3, TREE, 1, CPU)(
        DraftTree(torch.tensor([[-1] * 7]), torch.zeros(1, 7, dtype=torch.int64)),
        torch.arange(8)[None],
    )
    assert path.tokens[0].tolist() == [0, *[-1] * 7]


def test_levels_beyond_the_rates_are_not_accepted() -> None:
    assert walks(CHAIN, chain(TOKENS[:, :3]), [1.0], 5).unique().tolist() == [2]


@pytest.mark.parametrize("text", ["", "x", "0.5,", "1.5", "-0.1", "nan"])
def test_what_is_no_probability_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="simulate-acceptance"):
        parse_rates(text)


def test_no_request_and_no_setting_can_ask_for_it() -> None:
    named = {field.name for kind in (Settings, SamplingParams) for field in fields(kind)}
    assert not [name for name in named if "simulate" in name or "accept" in name]
    with pytest.raises(UsageError, match="no parameter simulate_acceptance"):
        LLM(simulate_acceptance=(0.5,))
