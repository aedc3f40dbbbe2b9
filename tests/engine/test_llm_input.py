"""What a program may hand to an LLM, and what is refused before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alula.engine.llm import LLM
from alula.errors import ModelError, ResourceError, UsageError
from alula.sampling.params import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=3)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), dtype="float32", speculation="off", cache_tokens=1024)


@pytest.mark.parametrize(
    "prompts",
    [
        *(
            None,
            5,
            "",
            [""],
            [[]],
            [None],
            [1.5],
            [[1.7, 2]],
            [["5"]],
            b"abc",
            [1, "a"],
            ["a", None],
        ),
        *({"prompt": "a"}, {"prompt_token_ids": "12"}, {"prompt_token_ids": None}, [-1], [10**30]),
    ],
)
def test_a_prompt_that_is_none_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(UsageError):
        llm.generate(prompts, PARAMS)
    assert not llm.engine.has_work


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ([], 0),
        ((5, 6), 1),
        (range(5, 8), 1),
        (np.array([5, 6]), 1),
        (iter("ab"), 2),
        (["a", [5]], 2),
    ],
)
def test_prompts_come_in_many_shapes(llm: LLM, prompts: Any, count: int) -> None:
    assert len(llm.generate(prompts, PARAMS)) == count


@pytest.mark.parametrize("given", [5, "x", {}, [], [None, None], [PARAMS]])
def test_parameters_that_are_none_are_refused(llm: LLM, given: Any) -> None:
    with pytest.raises(UsageError):
        llm.generate(["a", "b"], given)


@pytest.mark.parametrize("messages", [None, [], [[]], "a", {"role": "user", "content": "a"}, [1]])
def test_messages_that_are_none_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(UsageError):
        llm.chat(messages, PARAMS)


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ({"speculation": "chian:3"}, UsageError),
        ({"speculation": "tree:2x2:4"}, UsageError),
        ({"speculation": "off", "drafter": "d"}, UsageError),
        ({"drafter": "no-such-folder"}, ModelError),
        ({"max_sequences": "8"}, UsageError),
        ({"cache_tokens": 10**15}, UsageError),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_model_is_opened(
    chosen: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        LLM("no/such/model", **chosen)
    assert "no/such/model" not in str(refused.value)


def test_a_cache_beyond_all_memory_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ResourceError, match="key-value cache"):
        LLM(str(tiny_model), dtype="float32", speculation="off", cache_tokens=10**12)


def test_tokens_that_do_not_exist_are_refused_before_a_grammar_is_compiled(llm: LLM) -> None:
    """An invalid grammar would be refused by its compilation."""
    params = SamplingParams(grammar="no grammar at all", stop_token_ids=[10**6])
    with pytest.raises(UsageError, match="stop_token_ids holds token"):
        llm.generate("a", params)
    with pytest.raises(UsageError, match="grammar"):
        llm.generate("a", SamplingParams(grammar="no grammar at all"))
