"""What feeds a drafter and grows its trees equals the references."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from alula.ops import reference
from alula.ops import triton as forms
from alula.ops.catch_up import Committed
from alula.ops.expand import Candidates, Drafts, Frontier, Growth, Roots, candidates
from alula.ops.kernels import Kernels
from alula.ops.pair import PairWeights
from alula.sampling.noise import gumbel
from alula.speculation.tree import TreeShape, nodes_to

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on infinities
PAGE, LINES, PAGES, LENGTH = 4, 6, 30, 24


def integers(least: int, most: int, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(least, most, shape, generator=generator)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def on(device: torch.device, parts: NamedTuple) -> list[object]:
    return [part.to(device) if isinstance(part, Tensor) else part for part in parts]


def equal(found: object, expected: object) -> None:
    """Integers to the bit, floats nearly."""
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
    elif isinstance(expected, tuple):
        for mine, other in zip(found, expected, strict=True):  # type: ignore[call-overload]
            equal(mine, other)


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("parts", "width"), [(3, 24), (2, 1030), (4, 24)])
def test_a_round_is_followed_as_the_reference_does(
    sequences: int, steps: int, parts: int, width: int, device: torch.device, dtype: torch.dtype
) -> None:
    nodes = steps + 2
    counts = torch.tensor([steps, 0, 1, max(steps - 1, 1)])[:sequences]
    path = torch.cat((torch.zeros(sequences, 1).long(), integers(1, nodes, sequences, steps)), 1)
    path = path.where(torch.arange(steps + 1) < counts[:, None], -1)
    committed = Committed(
        lines=torch.tensor([5, 0, 3, 2])[:sequences],
        history=integers(0, 999, LINES, LENGTH),
        page_table=torch.randperm(PAGES)[: 4 * 7].view(4, 7)[:sequences],
        last=torch.tensor([LENGTH - 2, 3, 2, 9])[:sequences],
        path=path[:, :steps],
        counts=counts,
    )
    aux = [random(sequences * nodes, width, seed=part).to(dtype) for part in range(parts)]
    kept = random(PAGES, parts * width).to(dtype)
    mine = kept.clone().to(device)
    there = tuple(part.to(device) for part in aux)
    found = forms.catch_up(there, Committed(*on(device, committed)), mine, PAGE)
    equal(found, reference.catch_up(tuple(aux), committed, kept, PAGE))
    assert torch.equal(mine[:-1].cpu(), kept[:-1])  # the last is no sequence's


@pytest.mark.parametrize("norms_residual", [False, True])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("width", [48, 576])
def test_pairs_are_the_references(
    norms_residual: bool, gathers: bool, width: int, device: torch.device, dtype: torch.dtype
) -> None:
    weights = PairWeights(
        table=random(50, width).to(dtype),
        embedding_norm=random(width).to(dtype),
        hidden_norm=random(width, seed=1).to(dtype),
        eps=1e-5,
        frequencies=10000.0 ** (-torch.arange(0, 24, 2) / 24),
        scale=1.25,
        norms_residual=norms_residual,
    )
    sources = integers(0, 7, 9) if gathers else None
    hidden = random(7 if gathers else 9, width).to(dtype)
    tokens, positions = integers(0, 50, 9), integers(0, 9000, 9)
    asked = (hidden, sources, tokens, positions)
    mine = [part if part is None else part.to(device) for part in asked]
    found = forms.pair(*mine, PairWeights(*on(device, weights)))  # type: ignore[arg-type]
    expected = reference.pair(*asked, weights)
    assert torch.equal(found.residual.cpu(), expected.residual) or norms_residual
    assert (found.room is None) == (dtype == torch.float16)
    assert found.room is None or not found.room.any()
    near = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.inputs.cpu(), expected.inputs, atol=near, rtol=near)
    torch.testing.assert_close(found.residual.cpu(), expected.residual, atol=near, rtol=near)
    for turned, other in zip(found.rotation, expected.rotation, strict=True):
        torch.testing.assert_close(turned.cpu(), other, atol=2e-6, rtol=0)
    hidden_row = mine[0] if gathers else hidden[4:5].to(device)
    row = [part if part is None else part[4:5] for part in mine[1:]]
    alone = forms.pair(hidden_row, *row, PairWeights(*on(device, weights)))  # type: ignore[arg-type]
    assert torch.equal(alone.inputs, found.inputs[4:5])
    assert torch.equal(alone.rotation.cos, found.rotation.cos[4:5])


class Setting(NamedTuple):
    """Three sequences that draft."""

    roots: Roots
    growth: Growth
    drafts: Drafts


def setting(width: int, vocabulary: int, temperatures: list[float], depth: int) -> Setting:
    roots = Roots(
        lines=torch.tensor([4, 0, 3]),
        lengths=integers(3, LENGTH - 8, LINES),
        limits=torch.tensor([99, 99, 99, 3, 99, 99]),
        keys=integers(-(2**62), 2**62, LINES),
        temperatures=torch.tensor(temperatures),
        page_table=torch.randperm(PAGES)[: 3 * 7].view(3, 7),
    )
    growth = Growth(
        width=width,
        target_ids=torch.randperm(2 * vocabulary)[:vocabulary].sort().values,
        calibration=0.75,
        noise=gumbel if any(temperatures) else None,
        scratch=PAGES * PAGE,
        room=(depth - 1) * width,
        page_size=PAGE,
    )
    nodes = depth * width**2 + 2
    return Setting(
        roots, growth, Drafts(integers(0, 9, LINES, nodes), integers(0, 9, LINES, nodes))
    )


SHAPES = [(4, 1, 4), (1, 1, 1), (1, 3, 3), (3, 3, 8), (4, 4, 32), (2, 5, 30), (3, 8, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocabulary", [40, 2100])
@pytest.mark.parametrize("kind", ["greedy", "mixed", "equal"])
def test_trees_grow_as_the_references(
    shape: tuple[int, int, int], vocabulary: int, kind: str, device: torch.device
) -> None:
    """Every level's logits are the same for both; so are the frontiers and what is kept."""
    depth, width, nodes = shape
    temperatures = [0.9 if kind == "mixed" and line % 4 else 0.0 for line in range(LINES)]
    known = setting(width, vocabulary, temperatures, depth)
    levels = []
    for level in range(depth):
        logits = 3 * random(3 * (width if level else 1), vocabulary, seed=level)
        levels.append(logits.round() if kind == "equal" else logits)
    mine = Setting(
        Roots(*on(device, known.roots)),  # type: ignore[arg-type]
        known.growth._replace(target_ids=known.growth.target_ids.to(device)),
        Drafts(*(part.clone().to(device) for part in known.drafts)),
    )
    nodes = nodes_to(TreeShape(depth, width, nodes), depth)
    grown = grow(forms, mine, [logits.to(device) for logits in levels], nodes)
    equal(grown, grow(reference, known, levels, nodes))
    for found, expected in zip(mine.drafts, known.drafts, strict=True):
        assert torch.equal(found.cpu(), expected)


def grow(form: Kernels, known: Setting, levels: list[Tensor], nodes: int) -> object:
    """All frontiers, and all candidates."""
    roots, growth, drafts = known
    found = candidates(growth, 3, len(levels))
    frontiers: list[Frontier | None] = [None]
    for logits in levels[:-1]:
        frontiers.append(form.grow(logits, roots, growth, found, frontiers[-1]))
    form.finish(levels[-1], roots, growth, found, frontiers[-1], nodes, drafts)
    return tuple(frontiers[1:]), found


def test_a_draft_does_not_depend_on_the_sequences_beside_it(device: torch.device) -> None:
    known = setting(3, 2100, [0.0, 0.0, 0.0, 0.7, 0.9, 0.0], 1)
    roots = Roots(*on(device, known.roots))
    growth = known.growth._replace(target_ids=known.growth.target_ids.to(device))
    logits = random(3, 2100).to(device)
    whole = Candidates(*candidates(growth, 3, 2))
    frontier = forms.grow(logits, roots, growth, whole, None)
    alone = Candidates(*candidates(growth, 1, 2))
    one = roots._replace(lines=roots.lines[2:], page_table=roots.page_table[2:])
    only = forms.grow(logits[2:], one, growth, alone, None)
    assert torch.equal(only.scores, frontier.scores[2:])
    assert torch.equal(only.tokens, frontier.tokens[6:])


@pytest.mark.parametrize("width", [1, 4])
def test_logits_without_a_largest_still_draft_tokens(width: int, device: torch.device) -> None:
    """The spare line computes on memory that was never written."""
    known = setting(width, 40, [0.0] * LINES, 2)
    roots = Roots(*on(device, known.roots))
    growth = known.growth._replace(target_ids=known.growth.target_ids.to(device))
    drafts = Drafts(*(part.to(device) for part in known.drafts))
    found = candidates(growth, 3, 2)
    nothing = torch.full((3, 40), float("nan"), device=device)
    frontier = forms.grow(nothing, roots, growth, found, None)
    below = nothing.repeat(width, 1)
    forms.finish(below, roots, growth, found, frontier, width + 1, drafts)
    ids = set(growth.target_ids.tolist()) | {-1}
    assert set(drafts.tokens[[4, 0, 3]].flatten().tolist()) <= ids
    assert (drafts.parents[[4, 0, 3], : width + 1] <= torch.arange(width + 1, device=device)).all()
