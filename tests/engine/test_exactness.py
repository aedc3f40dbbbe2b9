"""A request's tokens depend on its prompt, parameters and seed alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.models.load import load
from exactness import Bench, Case, answers, answers_under_pressure, cases, engine

SHAPES = ["ngram", "eagle chain:3", "eagle tree:3x3:9", "oracle chain:4", "oracle tree:4x3:12"]


@pytest.fixture(scope="module")
def bench(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    model = load(str(tiny_model), "cpu", "float32")
    some = cases(model.decoder.shape.vocab_size, count=20, tokens=24)
    return Bench(model, some, tmp_path_factory.mktemp("exact"))


@pytest.mark.parametrize("words", SHAPES)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batch of 8"])
def test_speculation_changes_no_token(bench: Bench, words: str, together: bool) -> None:
    made = engine(bench.model, bench.speculator(words))
    assert answers(made, bench.cases, together=together) == bench.plain


def test_the_batch_changes_no_token(bench: Bench) -> None:
    assert answers(engine(bench.model), bench.cases, together=True) == bench.plain


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_a_warm_prefix_cache_changes_no_token(bench: Bench, words: str) -> None:
    made = engine(bench.model, bench.speculator(words))
    assert answers(made, bench.cases, together=True) == bench.plain
    assert answers(made, bench.cases, together=True) == bench.plain


@pytest.mark.parametrize("words", ["off", *SHAPES])
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_the_size_of_prefill_chunks_changes_no_token(bench: Bench, words: str, rows: int) -> None:
    made = engine(bench.model, bench.speculator(words), chunk_rows=rows)
    some = bench.cases[::3]
    assert answers(made, some, together=True) == bench.plain[::3]


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_preemption_changes_no_token(bench: Bench, words: str) -> None:
    made = engine(bench.model, bench.speculator(words), cache_tokens=352, max_length=160)
    found, preemptions = answers_under_pressure(made, bench.cases)
    assert preemptions > 0
    assert found == bench.plain


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
