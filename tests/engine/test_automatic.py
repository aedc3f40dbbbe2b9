"""Speculation by measurement: it follows what rows cost and what is accepted, within bounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from alula.engine import automatic
from alula.engine.automatic import AutomaticSpeculator, measure_rows
from alula.engine.events import LaunchRecord
from alula.engine.request import Sequence
from alula.engine.runner import Emitted
from alula.engine.scheduler import Chunk, Step
from alula.models.load import LoadedModel, load
from alula.sampling.params import SamplingParams
from alula.speculation.ngram import NgramDrafter
from alula.speculation.policy import RowCost, Survival
from alula.speculation.tree import TreeShape, parse_shape
from exactness import Oracle, answers, cases, engine

FLAT = RowCost({1: 0.020, 5: 0.021, 9: 0.022})
STEEP = RowCost({1: 0.010, 2: 0.020, 8: 0.080})
DEAR = RowCost({1: 0.010, 2: 0.100, 8: 0.200})
FORBIDDING = RowCost({1: 0.010, 2: 9.0})


class Machine:
    """Rounds of one sequence on a machine whose launches cost what `cost` says, times `pace`.

    `level` seconds a drafted level. Where rounds are `captured`, they have the rows of all nodes
    that were asked for, else of those that were `found`.
    """

    def __init__(
        self,
        cost: RowCost,
        accepted_of: Callable[[int], int],
        shape: str = "chain:4",
        *,
        level: float = 0.0,
        captured: bool = False,
        found: int = 4,
    ) -> None:
        self.cost, self.accepted_of, self.level = cost, accepted_of, level
        self.captured, self.found = captured, found
        self.speculator = AutomaticSpeculator(NgramDrafter(parse_shape(shape)), cost, "a drafter")
        if captured:
            self.speculator._draft_cost = RowCost({1: level})
        self.sequence = Sequence(7, [1], SamplingParams(), key=0)
        self.pending = 0
        self.depths: list[int] = []
        self.seconds = self.plain_seconds = 0.0

    def run(self, rounds: int, pace: float = 1.0, chunk_rows: int = 0) -> Machine:
        for _ in range(rounds):
            asked, self.pending = self.pending, self.speculator.depth(_round(self.sequence))
            self.depths.append(asked)
            drafted = min(asked, self.found)
            accepted = min(drafted, self.accepted_of(drafted)) if drafted else 0
            rows = 1 + (asked if self.captured else drafted)
            seconds = pace * (self.cost.at(rows) + self.level * self.pending)
            taken = seconds + pace * chunk_rows * self.cost.at(1)
            record = LaunchRecord(1, chunk_rows, drafted, 1 + accepted, taken)
            self.speculator.observe(record, [(7, _emitted(drafted, accepted))])
            self.seconds += seconds
            self.plain_seconds += pace * self.cost.at(1) * (1 + accepted)
        return self

    def renew(self) -> None:
        """Another request in the place of the one before."""
        self.speculator._survivals[7] = Survival()

    def lost(self, pace: float = 1.0) -> float:
        """Plain steps lost beyond three percent."""
        return (self.seconds - 1.03 * self.plain_seconds) / (pace * self.cost.at(1))


def _round(*sequences: Sequence) -> Step:
    return Step(chunks=(), rounds=sequences, admitted=())


def _emitted(drafted: int, accepted: int) -> Emitted:
    tokens = [5] * (1 + accepted)
    return Emitted(tokens, False, False, drafted, drafted, accepted, logprobs=None)


# What it chooses


def test_where_rows_cost_next_to_nothing_it_drafts() -> None:
    machine = Machine(FLAT, lambda depth: depth).run(60)
    assert machine.depths[-20:] == [4] * 20
    assert machine.plain_seconds > 3 * machine.seconds


def test_where_a_row_costs_more_than_it_may_lose_it_never_drafts() -> None:
    """However much would be accepted."""
    machine = Machine(FORBIDDING, lambda depth: depth).run(3000)
    assert set(machine.depths) == {0}


def test_where_nothing_is_accepted_it_all_but_stops() -> None:
    depths = Machine(FLAT, lambda _: 0).run(1000).depths
    assert any(depths)
    assert sum(depth > 0 for depth in depths[500:]) <= 10


def test_it_finds_a_drafter_that_has_become_good() -> None:
    accepts = [0]
    machine = Machine(FLAT, lambda _: accepts[0]).run(200)
    accepts[0] = 4
    assert machine.run(400).depths[-20:] == [4] * 20


# What it may lose


@pytest.mark.parametrize("cost", [FLAT, STEEP, DEAR], ids=["flat", "steep", "dear"])
@pytest.mark.parametrize("pattern", ["never", "bait", "random"])
def test_it_never_loses_more_than_five_steps_and_three_percent(cost: RowCost, pattern: str) -> None:
    """Against a drafter that is good only to be believed, too."""
    dice, count = random.Random(1), [0]

    def accepted(depth: int) -> int:
        count[0] += 1
        if pattern == "random":
            return dice.randint(0, depth)
        return depth if pattern == "bait" and count[0] % 40 < 8 else 0

    machine = Machine(cost, accepted)
    for _ in range(1500):
        machine.run(1)
        assert machine.seconds <= 1.03 * machine.plain_seconds + 5 * cost.at(1) + 1e-9


RISING = RowCost({1: 0.020, 2: 0.022, 5: 0.024})


def test_rounds_for_which_no_draft_is_found_are_no_plain_steps() -> None:
    """A captured round computes the rows that a draft would have had."""
    machine = Machine(RISING, lambda _: 0, captured=True, found=0)
    for _ in range(2000):
        assert machine.run(1).lost() <= 5 + 1e-6


@pytest.mark.parametrize("level", [0.0, 0.002])
def test_requests_that_come_all_the_time_are_not_believed_in_at_a_loss(level: float) -> None:
    """Each begins with good faith, and the launches of the others take its prompt along."""
    machine = Machine(RISING, lambda _: 0, captured=True, level=level)
    for number in range(2000):
        if number % 4 == 0:
            machine.renew()
        assert machine.run(1, chunk_rows=number % 3).lost() <= 5 + 1e-6


def test_what_is_drafted_behind_a_prompt_is_counted() -> None:
    """Each request has one round, whose draft was made in its prompt's launch."""
    made = AutomaticSpeculator(NgramDrafter(parse_shape("chain:4")), RISING, "a drafter")
    level = 0.002
    made._draft_cost = RowCost({1: level})
    lost = 0.0
    for number in range(1000):
        one = Sequence(number, [1, 2], SamplingParams(), key=0)
        drafted = made.depth(Step((Chunk(one, 0, 2, final=True),), (), (one,)))
        made.observe(LaunchRecord(0, 2, 0, 1, 0.5), [])
        more = made.depth(_round(one))
        taken = RISING.at(1 + drafted) + level * more
        made.observe(LaunchRecord(1, 0, drafted, 1, taken), [(number, _emitted(drafted, 0))])
        made.forget(number)
        lost += taken + level * drafted - 1.03 * RISING.at(1)
        assert lost <= 5 * RISING.at(1) + 1e-9


def test_a_stall_of_a_plain_launch_is_not_the_pace_of_the_machine() -> None:
    machine = Machine(RISING, lambda _: 0).run(100)
    assert machine.depths[-1] == machine.pending == 0
    machine.run(1, pace=1000.0)
    assert machine.speculator._pace < 1.5


@pytest.mark.parametrize("measured_at", [0, 100])
def test_a_machine_that_is_faster_than_measured_gives_no_credit(measured_at: int) -> None:
    machine = Machine(RISING, lambda _: 0).run(measured_at)
    for number in range(2000):
        if number % 4 == 0:
            machine.renew()
        assert machine.run(1, pace=0.25).lost(0.25) <= 5 * (4 if measured_at else 1) + 1e-6


def test_what_is_forgiven_as_a_stall_dies_out() -> None:
    """Rounds with drafts take ten times what was planned: each time it looks like a stall."""
    machine = Machine(RISING, lambda _: 0)
    machine.cost = RowCost({1: 0.020, 2: 0.200, 5: 0.200})
    for number in range(1, 20001):
        if number % 4 == 0:
            machine.renew()
        forgiven = 2 + math.log2(1 + number / 64)
        assert machine.run(1).lost() <= 5 + 9 * (1 + forgiven)


def test_one_stall_of_the_machine_does_not_end_drafting() -> None:
    machine = Machine(FLAT, lambda depth: depth).run(2)
    machine.run(1, pace=1000.0).run(60)
    assert machine.depths[-20:] == [4] * 20


def test_rounds_that_are_always_slower_than_planned_end_it() -> None:
    """Nothing but rounds with drafts is slow, so that it is not the machine's pace."""
    machine = Machine(FLAT, lambda depth: depth)
    machine.cost = RowCost({1: 0.020, 2: 0.5, 9: 0.5})
    machine.run(1000)
    assert sum(depth > 0 for depth in machine.depths) <= 20


def test_it_follows_the_pace_of_the_machine() -> None:
    """Three tokens a round pay where all takes four times as long as was measured, too."""
    machine = Machine(FLAT, lambda _: 2).run(600, pace=4.0)
    assert all(machine.depths[-20:])
    useless = Machine(FLAT, lambda _: 0).run(2000, pace=4.0)
    assert useless.seconds <= 1.03 * useless.plain_seconds + 4 * 10 * FLAT.at(1)


# What it looks at


def test_launches_with_prompt_rows_say_nothing_of_the_cost_of_rounds() -> None:
    machine = Machine(FLAT, lambda depth: depth).run(30)
    before = machine.run(5).depths[-1]
    for _ in range(50):
        record = LaunchRecord(1, chunk_rows=256, draft_nodes=4, emitted=1, seconds=9.0)
        machine.speculator.observe(record, [(7, _emitted(4, 4))])
    assert machine.run(5).depths[-1] == before == 4


def test_it_drafts_for_a_prompt_that_is_just_complete_and_not_before() -> None:
    made = AutomaticSpeculator(NgramDrafter(parse_shape("chain:4")), FLAT, "a drafter")
    one = Sequence(1, [1, 2, 3], SamplingParams(), key=0)
    part, final = Chunk(one, 0, 2, final=False), Chunk(one, 2, 3, final=True)
    assert made.depth(Step((part,), (), (one,))) == 0
    assert made.depth(Step((final,), (), ())) > 0


def test_it_says_what_it_measured() -> None:
    made = AutomaticSpeculator(NgramDrafter(TreeShape(4, 1, 4)), FLAT, "prompt lookup")
    assert made.reason.startswith("auto: prompt lookup, up to 4 tokens a round")
    assert "1 row 20.0 ms, 5 rows 21.0 ms, so 1.05 tokens a round break even" in made.reason


def test_it_counts_on_the_worst_of_every_launch_that_is_not_read_yet() -> None:
    """Free-running, a launch is chosen for while two are in no book; the bound holds."""
    speculator = AutomaticSpeculator(NgramDrafter(parse_shape("chain:4")), FLAT, "a drafter")
    step = _round(Sequence(7, [1], SamplingParams(), key=0))
    chosen, seconds, plain = [0, speculator.depth(step)], 0.0, 0.0
    for _ in range(1500):
        chosen.append(speculator.depth(step))
        drafted = chosen.pop(0)
        taken = FLAT.at(1 + drafted)
        record = LaunchRecord(1, 0, drafted, 1, taken)
        speculator.observe(record, [(7, _emitted(drafted, 0))])
        seconds, plain = seconds + taken, plain + FLAT.at(1)
        assert seconds <= 1.03 * plain + 5 * FLAT.at(1) + 1e-9
    assert seconds > plain


def test_it_takes_its_costs_from_rounds_as_they_are_launched() -> None:
    """Of one and of the most sequences; drafts cost nothing where they are timed at nothing."""

    class Timed:
        def seconds(self, sequences: int, pending: int, depth: int) -> float:
            return 1e-3 * (1 + 0.01 * sequences * (1 + pending) + 0.25 * depth)

    made = AutomaticSpeculator(NgramDrafter(parse_shape("chain:4")), STEEP, "a drafter")
    made.measure(Timed(), 8)  # type: ignore[arg-type]
    assert "1 row 1.0 ms, 5 rows 1.1 ms" in made.reason
    assert made._level_seconds(1) == pytest.approx(0.25e-3)
    assert made._level_seconds(8) == pytest.approx(0.25e-3)
    assert made._cost.at(40) == pytest.approx(1.4e-3)


def test_a_step_in_the_cost_of_rows_is_not_smoothed_away() -> None:
    """Where rows are nearly free up to half the draft, a draft of half of it has to be chosen."""

    class Stepped:
        def seconds(self, sequences: int, pending: int, depth: int) -> float:
            return (1e-3 if sequences * (1 + pending) <= 24 else 4e-3) + 1e-5 * depth

    made = AutomaticSpeculator(NgramDrafter(parse_shape("chain:4")), STEEP, "a drafter")
    made.measure(Stepped(), 8)  # type: ignore[arg-type]
    crowd = [Sequence(number, [1], SamplingParams(), key=0) for number in range(8)]
    assert made.depth(_round(*crowd)) == 2


def test_a_failed_launch_is_not_waited_for() -> None:
    speculator = AutomaticSpeculator(NgramDrafter(parse_shape("chain:4")), FLAT, "a drafter")
    step = _round(Sequence(7, [1], SamplingParams(), key=0))
    for _ in range(200):
        speculator.depth(step)
        speculator.abandon()
    assert speculator.depth(step) > 0


# In an engine


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), "cpu", "float32")


@pytest.mark.parametrize("shape", ["chain:4", "tree:4x3:12"])
def test_depths_that_change_from_launch_to_launch_change_no_token(
    model: LoadedModel, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = cases(model.decoder.shape.vocab_size, count=3, tokens=24)
    plain = answers(engine(model), some, together=False)
    truths = [(prompt, out) for (prompt, _), out in zip(some, plain, strict=True)]
    made = AutomaticSpeculator(Oracle(parse_shape(shape), truths), FLAT, "the oracle")
    dice, depths = random.Random(2), []

    def depth(step: Step) -> int:
        AutomaticSpeculator.depth(made, step)
        depths.append(dice.randint(0, 4))
        return depths[-1]

    monkeypatch.setattr(made, "depth", depth)
    assert answers(engine(model, made), some, together=True) == plain
    assert len(set(depths)) > 2


def test_nothing_is_remembered_of_sequences_that_are_gone(model: LoadedModel) -> None:
    """Finished or aborted."""
    speculator = AutomaticSpeculator(Oracle(parse_shape("chain:4"), []), FLAT, "the oracle")
    made = engine(model, speculator)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    requests = [made.add([5, 6, number], params) for number in range(4)]
    made.step()
    made.step()
    assert len(speculator._survivals) == 4
    made.abort(requests[0])
    assert len(speculator._survivals) == 3
    while made.has_work:
        made.step()
    assert not speculator._survivals


# Measuring


def test_costs_are_medians_and_the_first_round_only_warms_up(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = {count: iter([1000, 1, 90, 1]) for count in (1, 4, 16)}
    monkeypatch.setattr(
        automatic, "_timed_launch", lambda _decoder, _pool, rows: rows * next(factors[rows])
    )
    cost = measure_rows(model.decoder, rows=(1, 4, 16))
    assert [cost.at(rows) for rows in (1, 4, 16)] == [1, 4, 16]


def test_rows_are_really_launched_and_timed(model: LoadedModel) -> None:
    launched: list[int] = []
    forward = model.decoder.forward

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(model.decoder, name)

        def forward(self, ids: torch.Tensor, *rest: object) -> object:
            launched.append(len(ids))
            return forward(ids, *rest)  # type: ignore[arg-type]

    cost = measure_rows(Watched(), rows=(1, 8))  # type: ignore[arg-type]
    assert launched == [1, 8] * 4
    assert 0 < cost.at(1) <= cost.at(8) < 1
