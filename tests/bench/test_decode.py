"""The measurement itself, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.bench.compare import compare
from alula.bench.decode import Plan, measure
from alula.bench.workloads import Workload
from alula.errors import UsageError
from alula.models.load import LoadedModel, load

WORKLOADS = [Workload("chat", "Hello"), Workload("lists", "a, b, c, a, b, c")]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), "cpu", "float32")


def test_contenders_take_turns_and_give_the_same_tokens(model: LoadedModel) -> None:
    plan = Plan(WORKLOADS, max_tokens=24, repeats=2, speculation=("ngram", "chain:2", "off"))
    runs = measure(model, plan)
    order = [(run.repeat, run.prompt, run.shape) for run in runs]
    there = ["plain", "ngram", "ngram chain:2"]
    assert order == [
        (repeat, prompt, shape)
        for repeat in range(2)
        for prompt in range(2)
        for shape in (there if (repeat + prompt) % 2 == 0 else there[::-1])
    ]
    assert compare(runs).identical
    for run in runs:
        assert len(run.token_ids) == 24
        assert run.emitted == 23
        assert run.seconds > 0
        if run.shape == "plain":
            assert run.rounds == 23
            assert not run.drafted and not run.drafting_seconds


def test_a_shape_that_is_not_understood_is_refused(model: LoadedModel) -> None:
    with pytest.raises(UsageError, match="draft shape"):
        measure(model, Plan(WORKLOADS, speculation=("sometimes",)))
