"""Several readers of one engine: each gets its own tokens, whoever runs the launches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import pytest

from alula.engine.llm import LLM
from alula.engine.outputs import Delta
from alula.sampling.params import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["a quick brown fox", "over the lazy dog", "and back again to the start"]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), dtype="float32", speculation="ngram", cache_tokens=2048)


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[int]]:
    return [answer(llm, prompt) for prompt in PROMPTS]


def answer(llm: LLM, prompt: str) -> list[int]:
    return llm.generate(prompt, PARAMS)[0].outputs[0].token_ids


def joined(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def test_streams_read_in_turns_lose_nothing(llm: LLM, alone: list[list[int]]) -> None:
    read: list[list[Delta]] = [[] for _ in PROMPTS]
    for deltas in zip_longest(*(llm.stream(prompt, PARAMS) for prompt in PROMPTS)):
        for kept, delta in zip(read, deltas, strict=True):
            kept += [delta] if delta else []
    assert [joined(kept) for kept in read] == alone


def test_a_watcher_may_generate(llm: LLM, alone: list[list[int]]) -> None:
    within: list[list[int]] = []
    found = llm.generate(
        PROMPTS[0], PARAMS, on_delta=lambda *_: within.append(answer(llm, PROMPTS[1]))
    )
    assert found[0].outputs[0].token_ids == alone[0]
    assert within and all(tokens == alone[1] for tokens in within)


def test_a_stream_goes_on_after_another_request(llm: LLM, alone: list[list[int]]) -> None:
    stream = llm.stream(PROMPTS[0], PARAMS)
    first = next(stream)
    assert answer(llm, PROMPTS[1]) == alone[1]
    assert joined([first, *stream]) == alone[0]


def test_threads_share_an_engine(llm: LLM, alone: list[list[int]]) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda prompt: answer(llm, prompt), PROMPTS * 8))
    assert found == alone * 8


@pytest.mark.parametrize("at", ["_choose", "_report", "_logprobs"])
def test_a_launch_that_is_interrupted_leaves_the_engine_usable(
    llm: LLM, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    other = llm.stream(PROMPTS[1], PARAMS)
    first = next(other)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, at, interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=3, logprobs=0))
    llm.engine.scheduler.check()
    assert [answer(llm, prompt) for prompt in PROMPTS] == alone
    assert joined([first, *other]) == alone[1]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("reuse", [True, False])
def test_the_prefix_cache_can_be_left_out(tiny_model: Path, reuse: bool) -> None:
    llm = LLM(
        str(tiny_model), dtype="float32", speculation="off", cache_tokens=512, prefix_cache=reuse
    )
    first, second = (llm.generate("word " * 20, PARAMS)[0].outputs[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert second.prefix_tokens == (96 if reuse else 0)
