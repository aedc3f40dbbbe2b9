"""A request's tokens depend on its prompt, parameters and seed alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from alula.engine.speculator import Speculator, asked, speculator
from alula.models.load import LoadedModel, load
from alula.speculation.eagle3_checkpoint import random_checkpoint, save
from alula.speculation.ngram import NgramDrafter
from alula.speculation.tree import parse_shape
from exactness import Case, Oracle, answers, cases, engine

Make = Callable[[], Speculator]
SHAPES = ["ngram", "eagle chain:3", "eagle tree:3x3:9", "oracle chain:4", "oracle tree:4x3:12"]


class Bench:
    """A model, the requests, and what plain decoding alone answers to each."""

    def __init__(self, model: LoadedModel, folder: Path, count: int, tokens: int) -> None:
        self.model = model
        self.cases = cases(model.decoder.shape.vocab_size, count, tokens)
        self.plain = answers(engine(model), self.cases, together=False)
        self._folder = folder

    def speculator(self, words: str) -> Speculator:
        """`ngram`, or a kind of drafter and its shape."""
        kind, _, shape = words.partition(" ")
        if kind == "ngram":
            return Speculator(NgramDrafter(parse_shape("chain:5"), shortest=1))
        if kind == "eagle":
            return speculator(asked(shape, self._drafter()), self.model.decoder)
        truths = [(prompt, out) for (prompt, _), out in zip(self.cases, self.plain, strict=True)]
        return Speculator(Oracle(parse_shape(shape), truths))

    def _drafter(self) -> Path:
        shape, folder = self.model.decoder.shape, self._folder / "drafter"
        if not folder.exists():
            checkpoint = random_checkpoint(
                hidden_size=shape.hidden_size,
                vocab_size=shape.vocab_size,
                layers=shape.layers,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
            )
            save(checkpoint, folder)
        return folder


@pytest.fixture(scope="module")
def bench(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    model = load(str(tiny_model), "cpu", "float32")
    return Bench(model, tmp_path_factory.mktemp("exact"), count=20, tokens=24)


@pytest.mark.parametrize("words", SHAPES)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batch of 8"])
def test_speculation_changes_no_token(bench: Bench, words: str, together: bool) -> None:
    made = engine(bench.model, bench.speculator(words))
    assert answers(made, bench.cases, together=together) == bench.plain


def test_the_batch_changes_no_token(bench: Bench) -> None:
    assert answers(engine(bench.model), bench.cases, together=True) == bench.plain


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_a_warm_prefix_cache_changes_no_token(bench: Bench, words: str) -> None:
    made = engine(bench.model, Speculator() if words == "off" else bench.speculator(words))
    assert answers(made, bench.cases, together=True) == bench.plain
    assert answers(made, bench.cases, together=True) == bench.plain


@pytest.mark.parametrize("words", ["off", *SHAPES])
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_the_size_of_prefill_chunks_changes_no_token(bench: Bench, words: str, rows: int) -> None:
    made = engine(
        bench.model, Speculator() if words == "off" else bench.speculator(words), chunk_rows=rows
    )
    some = bench.cases[::3]
    assert answers(made, some, together=True) == bench.plain[::3]


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_preemption_changes_no_token(bench: Bench, words: str) -> None:
    made = engine(
        bench.model,
        Speculator() if words == "off" else bench.speculator(words),
        cache_tokens=352,
        max_length=160,
    )
    requests = [made.add(prompt, params) for prompt, params in bench.cases]
    while made.has_work:
        made.step()
        made.scheduler.check()
    sequences = [request.answers[0].sequence for request in requests]
    assert sum(sequence.preemptions for sequence in sequences) > 0
    assert [sequence.output_ids for sequence in sequences] == bench.plain


def test_the_oracle_is_accepted_often_enough_to_prove_something(bench: Bench) -> None:
    made = engine(bench.model, bench.speculator("oracle tree:4x3:12"))
    requests = [made.add(prompt, params) for prompt, params in bench.cases]
    while made.has_work:
        made.step()
    rounds = sum(request.answers[0].sequence.rounds for request in requests)
    tokens = sum(len(out) for out in bench.plain) - len(requests)
    assert tokens / rounds > 2.5


def test_a_prefix_hit_keeps_the_accepted_length(bench: Bench) -> None:
    """A drafter that lost the keys of reused pages would accept less when warm."""
    made = engine(bench.model, bench.speculator("eagle chain:3"))

    def rounds(some: list[Case]) -> list[int]:
        requests = [made.add(prompt, params) for prompt, params in some]
        while made.has_work:
            made.step()
        sequences = [request.answers[0].sequence for request in requests]
        hits.append(sum(sequence.prefix_tokens for sequence in sequences))
        return [sequence.rounds for sequence in sequences]

    hits: list[int] = []
    some = [case for case in bench.cases if len(case[0]) > 40][:6]
    assert rounds(some) == rounds(some)
    assert hits[1] > hits[0]
