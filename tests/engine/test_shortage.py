"""Whatever of the engine runs out of memory says so, and the engine can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from alula.engine import core, llm
from alula.engine.core import Engine
from alula.engine.lines import Lines
from alula.engine.llm import LLM
from alula.engine.runner import Runner
from alula.errors import ShortageError
from alula.models.load import LoadedModel, load
from alula.sampling.params import SamplingParams
from exactness import engine

PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), "cpu", "float32")


def fail(*_arguments: Any, **_named: Any) -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 846.00 MiB.")


def answer(made: Engine, prompt: list[int]) -> list[int]:
    request = made.add(prompt, PARAMS)
    return [token for event in made.follow([request]) for token in event.delta.token_ids]


@pytest.mark.parametrize(
    ("owner", "step", "what"),
    [
        (Lines, "admit", "what is asked of a sequence"),
        (Runner, "_compute", "a launch"),
        (Runner, "_report", "what a launch brought"),
    ],
)
def test_a_step_says_what_ran_short_and_the_next_gives_the_same_tokens(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, what: str
) -> None:
    expected = answer(engine(model), [5, 6, 7])
    made = engine(model)
    waiting = made.add([8, 9], PARAMS)
    with monkeypatch.context() as broken:
        broken.setattr(owner, step, fail)
        with pytest.raises(ShortageError, match=f"no memory for {what}: .*846.00 MiB"):
            made.step()
    assert made.failed == [waiting]
    assert answer(made, [5, 6, 7]) == expected


def test_a_failure_is_about_those_under_way_and_not_about_those_that_wait(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(model, max_sequences=1)
    under_way, waiting = made.add([5, 6], PARAMS), made.add([7, 8], PARAMS)
    with monkeypatch.context() as broken:
        broken.setattr(Runner, "_compute", fail)
        with pytest.raises(ShortageError):
            made.step()
    assert made.failed == [under_way]
    made.abort(under_way)
    assert len(list(made.follow([waiting]))) == 3


def test_an_engine_and_a_drafter_without_room_say_so(
    model: LoadedModel, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "Lines", fail)
    with pytest.raises(ShortageError, match="the lines of sequences"):
        engine(model)
    monkeypatch.setattr(llm, "make_speculator", fail)
    with pytest.raises(ShortageError, match="no memory for the drafter"):
        LLM(str(tiny_model), dtype="float32", speculation="ngram")
