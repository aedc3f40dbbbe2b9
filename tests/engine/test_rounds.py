"""Dense rounds, as they are captured on a GPU, emit the tokens of tight ones, free-running too."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alula.engine import rounds as module
from alula.engine.core import Engine
from alula.engine.events import Request
from alula.engine.launch import build_dense
from alula.engine.lines import Lines
from alula.engine.rounds import CapturedRounds, Compute, Flight, Rounds, Size, rounded
from alula.engine.speculator import Speculator
from alula.errors import ModelError, ShortageError
from alula.models.load import load
from alula.ops.advance import Mailbox
from alula.ops.sample import Wants
from alula.sampling.params import SamplingParams
from alula.speculation.walk import walk
from exactness import Bench, answers, answers_under_pressure, cases, engine

GREEDY = Wants(noise=False, filters=0, adjustments=False)
SHAPES = [
    "off",
    "ngram",
    "eagle chain:3",
    "eagle tree:3x3:9",
    "oracle chain:4",
    "oracle tree:4x3:12",
]


@pytest.fixture(scope="module")
def bench(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    model = load(str(tiny_model), "cpu", "float32")
    some = cases(model.decoder.shape.vocab_size, count=8, tokens=24)
    return Bench(model, some, tmp_path_factory.mktemp("rounds"))


def dense(bench: Bench, words: str, **sizes: int) -> Engine:
    """An engine whose rounds are laid out as if they were captured."""
    made = engine(bench.model, bench.speculator(words), **sizes)
    runner = made._runner
    runner.rounds = Rounds(runner.lines, runner._round)
    return made


@pytest.mark.parametrize("words", SHAPES)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batch of 8"])
def test_dense_rounds_emit_the_same_tokens(bench: Bench, words: str, together: bool) -> None:
    made = dense(bench, words)
    assert answers(made, bench.cases, together=together) == bench.plain
    assert made._runner.launches["captured"] > 5


def test_a_walk_that_is_put_in_walks(bench: Bench) -> None:
    made, walked = dense(bench, "oracle tree:4x3:12"), []
    made._runner.walk = lambda tree, choice: (walked.append(tree), walk(tree, choice))[1]
    assert answers(made, bench.cases, together=True) == bench.plain
    assert len(walked) > 5


@pytest.mark.parametrize("words", SHAPES)
def test_dense_rounds_survive_preemption(bench: Bench, words: str) -> None:
    found, preemptions = answers_under_pressure(
        dense(bench, words, cache_tokens=352, max_length=160), bench.cases
    )
    assert preemptions > 0
    assert found == bench.plain


@pytest.mark.parametrize("words", ["off", "oracle tree:4x3:12"])
def test_a_round_is_under_way_while_the_one_before_is_read(
    bench: Bench, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, order = dense(bench, words), []
    runner = made._runner
    launch, collect = runner.launch, runner.collect
    monkeypatch.setattr(runner, "launch", lambda *a: (order.append("launch"), launch(*a))[1])
    monkeypatch.setattr(runner, "collect", lambda *a: (order.append("collect"), collect(*a))[1])
    prompt, params = bench.cases[0]
    made.add(prompt, params)
    while made.has_work:
        made.step()
    assert order.count("launch") == order.count("collect")
    ahead = "".join(word[0] for word in order)
    assert "llclclcl" in ahead


@pytest.mark.parametrize("words", ["off", "eagle chain:3", "oracle tree:4x3:12"])
def test_requests_may_come_and_go_during_a_flight(bench: Bench, words: str) -> None:
    """Whoever stays gets the tokens it gets alone, and every page comes back."""
    made, dice = dense(bench, words, max_sequences=3), random.Random(5)
    waiting = list(range(len(bench.cases))) * 2
    running: list[tuple[Request, int]] = []
    finished = 0
    while waiting or running:
        if waiting and dice.random() < 0.4:
            number = waiting.pop()
            running.append((made.add(*bench.cases[number]), number))
        made.step()
        made.scheduler.check()
        for request, number in list(running):
            if not request.unfinished:
                assert request.answers[0].sequence.output_ids == bench.plain[number]
                finished += 1
            elif dice.random() < 0.01:
                made.abort(request)
            else:
                continue
            running.remove((request, number))
    assert len(bench.cases) // 2 < finished < 2 * len(bench.cases)
    while made.has_work:
        made.step()
    made.scheduler.check()
    assert made.scheduler.running == 0


def test_a_stop_token_ends_a_line_on_the_device(bench: Bench) -> None:
    """The round after it is launched before the host knows, and emits nothing."""
    prompt, _ = bench.cases[0]
    stop = bench.plain[0][5]
    cut = bench.plain[0][: bench.plain[0].index(stop) + 1]
    made = dense(bench, "off")
    stopped = SamplingParams(temperature=0.0, max_tokens=24, stop_token_ids=(stop,))
    request, beside = made.add(prompt, stopped), made.add(*bench.cases[1])
    while made.has_work:
        made.step()
    assert request.answers[0].sequence.output_ids == cut
    assert request.answers[0].output().finish_reason == "stop"
    assert beside.answers[0].sequence.output_ids == bench.plain[1]


def test_logits_that_allow_no_choice_fail_the_launch_and_not_the_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, decoder = dense(bench, "off"), bench.model.decoder
    request = made.add(*bench.cases[0])
    for _ in range(4):
        made.step()
    with monkeypatch.context() as patched:
        logits = decoder.logits
        patched.setattr(decoder, "logits", lambda hidden: logits(hidden) * float("nan"))
        with pytest.raises(ModelError):
            for _ in range(3):
                made.step()
    while made.has_work:
        made.step()
        made.scheduler.check()
    assert request.answers[0].sequence.output_ids == bench.plain[0]


def test_logprobs_are_those_of_tight_rounds(bench: Bench) -> None:
    def logprobs(made: Engine) -> list[float]:
        params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, ignore_eos=True)
        requests = [made.add(prompt, params) for prompt, _ in bench.cases[:3]]
        while made.has_work:
            made.step()
        told = [request.answers[0].output().logprobs or [] for request in requests]
        return [token.logprob for tokens in told for token in tokens]

    for words in ("off", "oracle tree:4x3:12"):
        expected = logprobs(engine(bench.model, bench.speculator(words)))
        assert len(expected) == 36
        assert logprobs(dense(bench, words)) == pytest.approx(expected, abs=1e-5)


def test_the_depth_may_vary_from_launch_to_launch(bench: Bench) -> None:
    class Varying(Speculator):
        def depth(self, step: object) -> int:  # noqa: ARG002
            self.calls = getattr(self, "calls", 0) + 1
            return self.calls % 4

    varying = Varying(bench.speculator("eagle chain:3")._drafter)
    made = engine(bench.model, varying)
    runner = made._runner
    runner.rounds = Rounds(runner.lines, runner._round)
    assert answers(made, bench.cases, together=True) == bench.plain


@pytest.mark.parametrize("count", [1, 3])
def test_what_kernels_read_by_number_is_contiguous(bench: Bench, count: int) -> None:
    """One sequence's numbers, broadcast over its rows, would be a view without strides."""
    runner = dense(bench, "eagle tree:3x3:9")._runner
    lines, angles = runner.lines, runner._angles
    launch = build_dense(torch.arange(count), lines, angles, 32, runner._shape, 3)
    rows, parts = launch.rows, (launch.ids, launch.last, *launch.nodes)
    assert all(part.is_contiguous() for part in (*parts, *rows[:6], rows.tail))


def test_a_size_is_timed_on_the_spare_line(bench: Bench) -> None:
    made = dense(bench, "eagle chain:3")
    rounds = made._runner.rounds
    assert rounds is not None
    assert rounds.seconds(2, 3, 3) > rounds.seconds(1, 0, 0) > 0
    assert answers(made, bench.cases, together=True) == bench.plain


def test_captures_are_no_part_of_what_a_launch_takes(bench: Bench) -> None:
    """Else the first round with drafts would look as if drafting were dear."""

    class Capturing(Rounds):
        """Claims with each launch to have captured for a thousand seconds, while none passes."""

        count = 0

        @property
        def capturing(self) -> float:
            return 1000.0 * self.count

        def _launch(self, lines: list[int], size: Size) -> Flight:
            self.count += 1
            return super()._launch(lines, size)

    made = dense(bench, "eagle chain:3")
    runner, records = made._runner, []
    runner.rounds = Capturing(runner.lines, runner._round)
    made.observers.append(records.append)
    assert answers(made, bench.cases, together=True) == bench.plain
    assert len(records) > 5
    assert min(record.seconds for record in records) < -900  # taken off where it fell


def test_a_capture_begins_when_what_is_under_way_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the launch under way would seem to have taken no time, a gain of speculation."""
    clock = [0.0]

    def takes(seconds: float) -> Callable[..., Any]:
        def passed(*_arguments: Any, **_named: Any) -> Any:
            clock[0] += seconds
            return SimpleNamespace(launch=lambda _lines: None)

        return passed

    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module.torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(module.torch.cuda, "synchronize", takes(20.0))
    monkeypatch.setattr(module, "_Graph", takes(300.0))
    monkeypatch.setattr(module.CapturedRounds, "_begin", lambda _self: None)
    lines = SimpleNamespace(count=1, spare=1, device=torch.device("cpu"), replaceable=())
    made = module.CapturedRounds(lines, None)  # type: ignore[arg-type]
    made.launch([0], 0, 0, module._GREEDY)
    assert (clock[0], made.capturing) == (320.0, 300.0)


def test_rounds_that_find_no_memory_to_begin_with_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB.")

    monkeypatch.setattr(module.torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(module.torch, "empty", fail)
    lines = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(ShortageError, match="captured rounds: 32") as caught:
        module.CapturedRounds(lines, None)  # type: ignore[arg-type]
    assert "--no-graphs" in caught.value.fix


def test_sizes_are_powers_of_two_up_to_the_most() -> None:
    assert [rounded(n, 12) for n in (1, 2, 3, 4, 5, 8, 9, 12)] == [1, 2, 4, 4, 8, 8, 12, 12]


class Sized(CapturedRounds):
    """Rounds that are not captured, and remember which sizes would be."""

    def __init__(self, lines: Lines, compute: Compute) -> None:
        Rounds.__init__(self, lines, compute)
        self._chains, self._asked, self._graphs = True, Counter(), {}
        self.launched: list[tuple[int, int, int]] = []

    def _launch(self, lines: list[int], size: Size) -> Flight:
        self._graphs[size, self._lines.replaceable] = None  # type: ignore[assignment]
        self.launched.append((size.sequences, size.pending, size.depth))
        return Rounds._launch(self, lines, size)


def sized(made: Engine) -> Sized:
    """Rounds of an engine, launched by them."""
    runner = made._runner
    found = runner.rounds = Sized(runner.lines, runner._round)
    return found


def test_a_depth_that_changes_does_not_have_every_pair_captured(bench: Bench) -> None:
    made = engine(bench.model, bench.speculator("ngram"))
    rounds, spare = sized(made), made._runner.lines.spare

    def ask(pending: int, depth: int, sequences: int = 1) -> tuple[int, int]:
        rounds.launch([spare] * sequences, pending, depth, GREEDY)
        return rounds.launched[-1][1:]

    assert ask(2, 3) == (3, 3)
    assert ask(3, 2) == ask(3, 3) == ask(0, 3) == ask(3, 1) == (3, 3)
    assert ask(0, 0) == (0, 0)
    assert ask(3, 2, sequences=2) == (3, 3)
    # Nothing is drafted deeper than has been asked for before or is now.
    assert ask(2, 2) == ask(1, 2) == ask(2, 1) == (2, 2)
    assert ask(4, 3) == (4, 4)
    # What is asked for often is worth a capture.
    often = [ask(3, 2) for _ in range(module._SELDOM)]
    assert often[0] == (3, 3)
    assert often[-1] == (3, 2)
    assert ask(3, 2) == ask(3, 1) == (3, 2)


def test_timed_rounds_are_of_the_size_that_is_asked_for(bench: Bench) -> None:
    rounds = sized(engine(bench.model, bench.speculator("ngram")))
    for sequences, pending, depth in ((1, 4, 0), (3, 2, 0), (1, 0, 4), (4, 0, 0)):
        rounds.seconds(sequences, pending, depth)
        assert set(rounds.launched) == {(rounded(sequences, 8), pending, depth)}
        rounds.launched.clear()


@pytest.mark.parametrize("words", ["ngram", "eagle chain:3", "oracle chain:4"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batch of 8"])
def test_rounds_that_serve_for_others_emit_the_same_tokens(
    bench: Bench, words: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever depth is asked for from round to round."""
    speculator, dice = bench.speculator(words), random.Random(3)
    deepest = speculator.shape.depth
    monkeypatch.setattr(speculator, "depth", lambda _step: dice.randint(0, deepest))
    made = engine(bench.model, speculator)
    rounds = sized(made)
    asked: list[tuple[int, int, int]] = []
    launch = rounds.launch
    monkeypatch.setattr(
        rounds, "launch", lambda *a: (asked.append((len(a[0]), *a[1:3])), launch(*a))[1]
    )
    assert answers(made, bench.cases, together=together) == bench.plain
    served = [one[1:] != other[1:] for one, other in zip(asked, rounds.launched, strict=True)]
    assert sum(served) > 5
    if not together:
        assert len(set(rounds.launched)) < len(set(asked))


class FakeGraph:
    """Runs at once what a graph would run on the device, and may be interrupted just then."""

    def __init__(self, box: Mailbox) -> None:
        self._box = box
        self.interrupt = ""

    def replay(self) -> None:
        if self.interrupt == "before":
            raise KeyboardInterrupt
        self._box.columns[self._box.rounds % 2, 0] = self._box.rounds
        self._box.rounds.add_(1)
        if self.interrupt == "behind":
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", ["before", "behind"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_interrupted_launch_is_counted_if_it_has_begun(interrupt: str, count: int) -> None:
    box = Mailbox(torch.full((2, 1, 3), -9), torch.zeros(1, dtype=torch.int64))
    made: Any = object.__new__(module._Graph)
    made._mailbox, made._graph, made._launches = box, FakeGraph(box), 0
    for number in range(count):
        assert made.replay().tolist() == [[number] * 3]
    made._graph.interrupt = interrupt
    with pytest.raises(KeyboardInterrupt):
        made.replay()
    made._graph.interrupt = ""
    before = count + (interrupt == "behind")
    for number in range(before, before + 3):
        assert made.replay().tolist() == [[number] * 3]


def test_lines_whose_copy_was_interrupted_are_copied_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Any = object.__new__(module._Graph)
    copied: list[list[int]] = []
    interrupts = [False, True, False]

    def copy(staged: torch.Tensor, *, non_blocking: bool) -> None:
        copied.append(staged.tolist())
        if interrupts.pop(0):
            raise KeyboardInterrupt

    made._lines, made._at = [9], SimpleNamespace(copy_=copy)
    made._staged = [torch.tensor([9]), torch.tensor([9])]
    made.replay = lambda: box.columns[0]
    box = Mailbox(torch.zeros(2, 1, 3), torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: SimpleNamespace(record=lambda: None))
    made._outcome = None
    for lines in ([4], [5], [4]):
        with suppress(KeyboardInterrupt):
            made.launch(lines)
    assert copied == [[4], [5], [4]]
