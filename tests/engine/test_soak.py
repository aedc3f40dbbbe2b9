"""Batches that grow and shrink for a long time, over memory that was never written.

Every slot of the cache is NaN until it is written, and so are the features that pages keep; the
spare line holds a draft of nonsense. Requests come, are cancelled and give way for each other. At
every step the invariants hold, and whoever finishes has the tokens it gets alone.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from alula.engine.core import Engine
from alula.engine.events import Request
from alula.engine.rounds import Rounds
from alula.models.load import load
from exactness import Bench, cases, engine

SHAPES = ["off", "eagle chain:3", "eagle tree:3x3:9"]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def bench(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    model = load(str(tiny_model), "cpu", "float32")
    some = cases(model.decoder.shape.vocab_size, count=8, tokens=24)
    return Bench(model, some, tmp_path_factory.mktemp("soak"))


@pytest.fixture(scope="module")
def on_gpu(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    model = load(str(tiny_model), "cuda", "bfloat16")
    some = cases(model.decoder.shape.vocab_size, count=12, tokens=48)
    return Bench(model, some, tmp_path_factory.mktemp("soak"))


@pytest.mark.parametrize("words", SHAPES)
def test_a_short_soak(bench: Bench, words: str) -> None:
    made = poisoned(bench, words)
    made._runner.rounds = Rounds(made._runner.lines, made._runner._round)
    assert soak(bench, made, rounds=50).preempted


@pytest.mark.slow
@pytest.mark.parametrize("words", SHAPES)
def test_a_long_soak(bench: Bench, words: str) -> None:
    made = poisoned(bench, words)
    made._runner.rounds = Rounds(made._runner.lines, made._runner._round)
    assert soak(bench, made, rounds=10_000).preempted


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("words", SHAPES)
def test_a_soak_of_captured_rounds(on_gpu: Bench, words: str) -> None:
    assert soak(on_gpu, poisoned(on_gpu, words), rounds=10_000).preempted


def poisoned(bench: Bench, words: str) -> Engine:
    """An engine too small for its requests, whose memory holds nothing that may be read."""
    made = engine(bench.model, bench.speculator(words), cache_tokens=416, max_length=160)
    runner = made._runner
    runner._pool._store.fill_(float("nan"))
    spare = runner.lines.spare
    runner.lines.history[spare] = 7
    runner.lines.draft_parents[spare] = 0
    drafting = runner._drafting
    if drafting is not None:
        drafting._drafter._pool._store.fill_(float("nan"))  # type: ignore[attr-defined]
    return made


class Soak:
    """A crowd of requests in one engine."""

    def __init__(self, bench: Bench, made: Engine) -> None:
        self.bench, self.made = bench, made
        self.dice = random.Random(11)
        self.running: list[tuple[Request, int]] = []
        self.finished = self.cancelled = self.preempted = 0

    def turn(self, most: int) -> None:
        """Let some come, some go, and launch."""
        while len(self.running) < most and self.dice.random() < 0.5:
            number = self.dice.randrange(len(self.bench.cases))
            self.running.append((self.made.add(*self.bench.cases[number]), number))
        self.made.step()
        self.made.scheduler.check()
        for request, number in list(self.running):
            sequence = request.answers[0].sequence
            if not request.unfinished:
                assert sequence.output_ids == self.bench.plain[number]
                self.finished += 1
                self.preempted += sequence.preemptions
            elif self.dice.random() < 0.01:
                self.made.abort(request)
                self.cancelled += 1
            else:
                continue
            self.running.remove((request, number))


def soak(bench: Bench, made: Engine, rounds: int) -> Soak:
    """Turns until `rounds` launches were dense, the crowd growing and shrinking; then the end."""
    soaked = Soak(bench, made)
    turn = 0
    while made.launches.get("captured", 0) < rounds:
        turn += 1
        soaked.turn(most=12 - turn // 15 % 12)
    while soaked.running:
        soaked.turn(most=0)
    while made.has_work:
        made.step()
    made.scheduler.check()
    assert made.scheduler.running == 0
    assert soaked.finished > 5 and soaked.cancelled
    return soaked
