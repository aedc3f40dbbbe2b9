"""What is before and behind the model in a round of fixed size equals its reference."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from alula.ops import reference
from alula.ops import triton as forms
from alula.ops.advance import Mailbox
from alula.ops.rope import Rotation
from alula.ops.triton.sample import find_in
from alula.ops.walk import Path
from alula.sampling import sampler
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState
from lines import Case, angles, case

SEEDS = range(24)

# The interpreter computes with numpy, which remarks on infinities.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def flat(parts: Iterable[object]) -> list[Tensor]:
    """All tensors of a tuple of tuples."""
    found: list[Tensor] = []
    for part in parts:
        found += [part] if isinstance(part, Tensor) else flat(part) if part is not None else []  # type: ignore[call-overload]
    return found


def assert_equal(found: tuple[object, ...], expected: tuple[object, ...]) -> None:
    mine, others = (flat(p for p in parts if not isinstance(p, int)) for parts in (found, expected))
    assert len(mine) == len(others)
    for number, (one, other) in enumerate(zip(mine, others, strict=True)):
        assert one.dtype == other.dtype and one.shape == other.shape, number
        assert torch.equal(one.cpu(), other), number


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("has_tail", [False, True])
def test_rounds_are_prepared_as_by_the_reference(
    seed: int, has_tail: bool, device: torch.device
) -> None:
    given, table = case(seed), angles(head_dim=24 if seed % 2 else 16)
    size = (4 if seed % 3 else 32, given.nodes, given.depth)
    expected = reference.prepare(given.at, given.state, table, *size, has_tail=has_tail)
    there = Rotation(*(part.to(device) for part in table))
    found = forms.prepare(
        *(given.at.to(device), given.copy(device), there, *size), has_tail=has_tail
    )
    assert_equal(found._replace(rows=found.rows[:7]), expected._replace(rows=expected.rows[:7]))


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_end_as_by_the_reference(seed: int, device: torch.device) -> None:
    given = case(seed)
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(-1, 3, (len(given.at) * (given.nodes + 1),), generator=generator)
    made = prepared(given)
    known, mine = given.copy(torch.device("cpu")), given.copy(device)
    expected = reference.advance(given.at, known, choice, *made)
    found = forms.advance(given.at.to(device), mine, choice.to(device), *to(device, made))
    assert_equal(found, expected)
    assert_equal(mine, known)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_rounds_leave_their_columns_by_turns_as_by_the_reference(
    seed: int, device: torch.device
) -> None:
    given = case(seed)
    sequences, steps = len(given.at), given.nodes + 1
    known, mine = given.copy(torch.device("cpu")), given.copy(device)
    boxes = [mailbox(place, sequences, steps) for place in (torch.device("cpu"), device)]
    tokens, parents, drafted = prepared(given)
    told = []
    for turn in range(3):
        # What one round leaves lies beside what the one before it has left.
        path = reference.walk(tokens, parents, torch.full((sequences, steps), turn))
        expected = reference.settle(given.at, known, path, drafted, boxes[0])
        there = Path(*to(device, path))
        found = forms.settle(given.at.to(device), mine, there, drafted.to(device), boxes[1])
        assert_equal(found, expected)
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert_equal(boxes[1], tuple(boxes[0]))
        told.append(boxes[1].columns[turn % 2].clone())
        before = told[-2] if turn else torch.full_like(told[0], -9)
        assert torch.equal(boxes[1].columns[1 - turn % 2], before)
    assert boxes[1].rounds.tolist() == [3] * sequences


@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_is_settled_as_by_the_reference(seed: int, device: torch.device) -> None:
    given = case(seed)
    tokens, parents, drafted = prepared(given)
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(-1, 3, (len(given.at), given.nodes + 1), generator=generator)
    path = reference.walk(tokens, parents, choice)
    known, mine = given.copy(torch.device("cpu")), given.copy(device)
    expected = reference.settle(given.at, known, path, drafted)
    there = Path(*to(device, path))
    found = forms.settle(given.at.to(device), mine, there, drafted.to(device))
    assert_equal(found, expected)
    assert_equal(mine, known)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_the_sampler_leaves_is_chosen_as_by_the_reference(
    seed: int, noise: bool, device: torch.device
) -> None:
    """Rows without a largest logit too, and lines with and without noise side by side."""
    given = case(seed, vocabulary=300)
    lines = given.at.repeat_interleave(given.nodes + 1)
    rows, generator = len(lines), torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 300, generator=generator).mul(4).round()
    logits[torch.rand(rows, generator=generator) < 0.1, 5] = torch.inf
    asked = (logits, lines, torch.arange(rows), torch.full((rows, 2), -1))
    state, there = (settings(place, noise) for place in ("cpu", device))
    wants = state.wants(lines.tolist())
    chosen = sampler.sample(*asked, state, wants)
    agreeing(given, chosen.view(len(given.at), -1), generator)
    made = prepared(given)
    known, mine = given.copy(torch.device("cpu")), given.copy(device)
    expected = reference.advance(given.at, known, chosen, *made)
    left = find_in(128, *to(device, asked), there.settings(), wants)
    found = forms.advance(given.at.to(device), mine, left, *to(device, made))
    assert_equal(found, expected)
    assert_equal(mine, known)


def mailbox(device: torch.device, sequences: int, steps: int) -> Mailbox:
    """An empty one, that a GPU sees on the host."""
    columns = torch.full((2, sequences, 6 + steps), -9)
    if device.type == "cuda":
        columns = columns.pin_memory()
    return Mailbox(columns, torch.zeros(sequences, dtype=torch.int64, device=device))


def prepared(given: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and parents of the drafts, and what the host wants to know of them."""
    made = reference.prepare(
        *(given.at, given.state, angles(16), 4, given.nodes, given.depth), has_tail=False
    )
    return made.tokens, made.parents, made.drafted


def settings(place: torch.device | str, noise: bool) -> SamplingState:
    """Every other line is greedy, or all are."""
    state = SamplingState(6, 300, place)
    for line in range(6):
        drawn = noise and line % 2 == 0
        state.admit(line, SamplingParams(temperature=0.8 if drawn else 0.0), line, [])
    return state


def agreeing(given: Case, chosen: Tensor, generator: torch.Generator) -> None:
    """Let most drafts be what is chosen."""
    tokens, parents = given.state.draft_tokens, given.state.draft_parents
    for line, choice in zip(given.at.tolist(), chosen, strict=True):
        likely = choice[parents[line, : given.nodes]].clamp_min(0)
        agrees = torch.rand(given.nodes, generator=generator) < 0.8
        own = tokens[line, : given.nodes]
        tokens[line, : given.nodes] = torch.where(agrees & (own >= 0), likely, own)


def to(device: torch.device, parts: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(part.to(device) for part in parts)
