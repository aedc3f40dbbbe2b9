"""What a program that talks to `LLM` may rely on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alula.engine import llm as llm_module
from alula.engine.llm import LLM
from alula.engine.outputs import Delta, RequestOutput
from alula.engine.settings import Settings
from alula.errors import AlulaError, ModelError, UsageError
from alula.sampling.params import SamplingParams
from tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SIZES: dict[str, Any] = {"device": "cpu", "dtype": "float32", "cache_tokens": 2048}


def open_tiny(folder: Path, **changes: Any) -> LLM:
    return LLM(str(folder), **{"speculation": "off", "max_length": 256, **SIZES, **changes})


@pytest.fixture(scope="module")
def opened(tiny_model: Path) -> LLM:
    return open_tiny(tiny_model)


@pytest.fixture
def llm(opened: LLM) -> Iterator[LLM]:
    """After every test nothing runs, waits or holds a page."""
    yield opened
    assert_idle(opened)


def assert_idle(llm: LLM) -> None:
    llm.engine.scheduler.check()
    assert not llm.engine.has_work
    assert llm.engine.pages.in_use == 0


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


# Prompts


def test_a_prompt_is_text_or_ids_or_a_mapping_that_holds_ids(llm: LLM) -> None:
    ids = llm.model.tokenizer.encode("hello there")
    forms: list[Any] = ["hello there", ids, tuple(ids), np.array(ids), {"prompt_token_ids": ids}]
    for prompt in (*forms[:3], forms[4]):
        (output,) = llm.generate(prompt, GREEDY)
        assert output.prompt_token_ids == ids
        assert output.prompt == (prompt if isinstance(prompt, str) else None)
    assert len({tuple(found) for found in tokens(llm.generate(forms, GREEDY))}) == 1


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"prompt number {number}" * (1 + number % 3) for number in range(11)]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert tokens(outputs) == [tokens(llm.generate(prompt, GREEDY))[0] for prompt in prompts]


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    each = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], each)
    assert [len(found) for found in tokens(outputs)] == [1, 5, 3]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ("", GREEDY, "a prompt of 0 tokens"),
        ([[]], GREEDY, "a prompt of 0 tokens"),
        ("x" * 256, GREEDY, "a prompt of 256 tokens"),
        ([5, 259], GREEDY, "the prompt holds token 259"),
        ([5, -1], GREEDY, "the prompt holds token -1"),
        ([5, 1.5], GREEDY, "a prompt holds 1.5"),
        ([5, "6"], GREEDY, "a prompt holds '6'"),
        ("a", SamplingParams(stop_token_ids=[259]), "stop_token_ids holds token 259"),
        ("a", SamplingParams(logit_bias={300: 1.0}), "logit_bias holds token 300"),
        ({"prompt": "a"}, GREEDY, r"keys \['prompt'\]"),
        (["a", "b"], [GREEDY], "1 sampling parameters for 2 prompts"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_any_work(
    llm: LLM, prompt: Any, params: Any, words: str
) -> None:
    launches: list[object] = []
    llm.engine.observers.append(launches.append)
    with pytest.raises(UsageError, match=words):
        llm.generate(prompt, params)
    if not isinstance(params, list):
        bad = prompt[0] if isinstance(prompt, list) and prompt == [[]] else prompt
        with pytest.raises(UsageError, match=words):
            llm.generate(["a good prompt", bad], params)
    llm.engine.observers.clear()
    assert not launches
    assert_idle(llm)


def test_the_longest_prompt_gets_one_token(llm: LLM) -> None:
    (answer,) = llm.generate("x" * 255, GREEDY)[0].outputs
    assert len(answer.token_ids) == 1
    assert answer.finish_reason == "length"


# Chat


def test_chat_answers_one_conversation_or_several(llm: LLM) -> None:
    asked = [{"role": "user", "content": "hi"}], [{"role": "user", "content": "who are you?"}]
    together = llm.chat(asked, GREEDY)
    assert tokens(together) == [tokens(llm.chat(one, GREEDY))[0] for one in asked]
    text = llm.model.tokenizer.decode(together[0].prompt_token_ids, skip_special=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "plain")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    with pytest.raises(UsageError, match="cannot chat"):
        open_tiny(folder).chat([{"role": "user", "content": "hi"}])


# Streams


@pytest.mark.parametrize("prompt", ["tell me", [{"role": "user", "content": "tell me"}]])
def test_a_stream_brings_the_whole_answer_in_pieces(llm: LLM, prompt: Any) -> None:
    (whole,) = (llm.generate if isinstance(prompt, str) else llm.chat)(prompt, GREEDY)
    deltas = list(llm.stream(prompt, GREEDY))
    assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
    assert [i for delta in deltas for i in delta.token_ids] == whole.outputs[0].token_ids
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert len(deltas) > 1


def test_leaving_a_stream_early_ends_its_request(llm: LLM) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True, n=3)
    for count, _ in enumerate(llm.stream("tell me" * 12, params)):
        if count == 7:
            break
    assert_idle(llm)


def test_an_error_in_a_watcher_ends_all_requests(llm: LLM) -> None:
    def watch(_request: object, _delta: Delta) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one", "two"], GREEDY, on_delta=watch)
    assert_idle(llm)


def test_answers_asked_for_while_a_stream_is_open_disturb_neither(llm: LLM) -> None:
    alone = "".join(delta.text for delta in llm.stream("a long story", GREEDY))
    wanted = tokens(llm.generate(["x", "y"], GREEDY))
    longer = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    stream, other = llm.stream("a long story", GREEDY), llm.stream("another", longer)
    pieces = [next(stream).text]
    next(other)
    assert tokens(llm.generate(["x", "y"], GREEDY)) == wanted
    pieces += [delta.text for delta in stream]
    assert "".join(pieces) == alone
    assert [delta.finished for delta in other][-1]


def test_a_watcher_sees_the_request_and_its_text(llm: LLM) -> None:
    seen: dict[str | None, str] = {}

    def watch(request: Any, delta: Delta) -> None:
        seen[request.prompt] = seen.get(request.prompt, "") + delta.text

    outputs = llm.generate(["one", "two"], GREEDY, on_delta=watch)
    assert seen == {output.prompt: output.outputs[0].text for output in outputs}


# Launches that fail


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_a_launch_that_failed_the_next_request_is_answered(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    wanted = tokens(llm.generate(["one", "two"], GREEDY))
    forward, calls = llm.model.decoder.forward, []

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise error
        return forward(*arguments)

    monkeypatch.setattr(llm.model.decoder, "forward", fails_once)
    with pytest.raises(error):
        llm.generate(["one", "two"], GREEDY)
    assert_idle(llm)
    assert tokens(llm.generate(["one", "two"], GREEDY)) == wanted


def test_a_failed_launch_loses_nothing_of_the_streams_beside_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = llm.generate("a long story", GREEDY)
    stream = llm.stream("a long story", GREEDY)
    found = next(stream).token_ids
    with monkeypatch.context() as patched:
        patched.setattr(llm.model.decoder, "forward", None)
        with pytest.raises(TypeError):
            llm.generate("x", GREEDY)
    found += [token for delta in stream for token in delta.token_ids]
    assert found == whole.outputs[0].token_ids


# Samples and seeds


def test_samples_differ_and_a_seed_brings_all_of_them_back(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=3, max_tokens=20, ignore_eos=True)
    (first,), (again,) = llm.generate("once", params), llm.generate("once", params)
    found = [answer.token_ids for answer in first.outputs]
    assert [answer.index for answer in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(one) for one in found}) == 4
    assert [answer.token_ids for answer in again.outputs] == found
    assert again.seed == first.seed == 3
    fewer = SamplingParams(n=2, seed=3, max_tokens=20, ignore_eos=True)
    assert [a.token_ids for a in llm.generate("once", fewer)[0].outputs] == found[:2]


def test_a_seed_that_was_drawn_is_named_and_brings_the_answer_back(llm: LLM) -> None:
    first, other = llm.generate(["once"] * 2, SamplingParams(max_tokens=20, ignore_eos=True))
    assert first.seed != other.seed
    assert first.outputs[0].token_ids != other.outputs[0].token_ids
    again = SamplingParams(max_tokens=20, ignore_eos=True, seed=first.seed)
    assert tokens(llm.generate("once", again)) == [first.outputs[0].token_ids]


# Sizes and what is refused before the model is loaded


def test_sizes_are_the_fields_of_settings(tiny_model: Path) -> None:
    made = open_tiny(tiny_model, settings=Settings(max_sequences=3), max_length=100)
    assert made.engine.max_length == 100
    assert made.engine.scheduler.max_sequences == 3


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of models that were loaded, which is never."""
    names: list[str] = []

    def load(name: str, **_: Any) -> None:
        names.append(name)
        raise AssertionError("the model is being loaded")

    monkeypatch.setattr(llm_module, "load", load)
    return names


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_seqs": 4}, UsageError, "LLM has no parameter max_seqs"),
        ({"max_sequences": 0}, UsageError, "max_sequences cannot be 0"),
        ({"speculation": "chains:4"}, UsageError, "'chains:4' is not understood"),
        ({"speculation": "chain:-1"}, UsageError, "'chain:-1' is not understood"),
        ({"speculation": "tree:3x2:40"}, UsageError, "'tree:3x2:40' cannot be built"),
        ({"model": "of-mine", "speculation": "tree:3x2:6"}, UsageError, "needs a drafter"),
        ({"speculation": "off", "drafter": "d"}, UsageError, "no use for a drafter"),
        ({"speculation": "chain:3", "drafter": "no/such"}, ModelError, "no/such is no drafter"),
    ],
)
def test_what_no_model_could_mend_is_refused_before_one_is_loaded(
    loads: list[str], options: dict[str, Any], error: type[AlulaError], words: str
) -> None:
    with pytest.raises(error, match=words):
        LLM(**{"model": "smollm2", **options})
    assert not loads


def test_a_damaged_drafter_is_refused_before_the_model_is_loaded(
    loads: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        LLM("smollm2", drafter=tmp_path)
    assert not loads


def test_the_notes_say_how_it_speculates(llm: LLM) -> None:
    assert llm.notes[-1] == "speculation: off as asked"


# The prefix cache


def test_a_prompt_that_begins_as_another_reuses_its_keys(tiny_model: Path) -> None:
    made = open_tiny(tiny_model)
    first, second = made.generate(["x" * 70], GREEDY), made.generate(["x" * 70], GREEDY)
    assert [o[0].outputs[0].prefix_tokens for o in (first, second)] == [0, 64]
    assert tokens(first) == tokens(second)


def test_without_a_prefix_cache_nothing_is_reused_or_kept(tiny_model: Path) -> None:
    with_cache, without = open_tiny(tiny_model), open_tiny(tiny_model, prefix_cache=False)
    params = SamplingParams(n=3, seed=1, max_tokens=40, ignore_eos=True)
    for _ in range(2):
        (output,), (wanted,) = (
            without.generate("x" * 70, params),
            with_cache.generate("x" * 70, params),
        )
        assert [a.prefix_tokens for a in output.outputs] == [0, 0, 0]
        assert [a.token_ids for a in output.outputs] == [a.token_ids for a in wanted.outputs]
        pages = without.engine.pages
        assert pages.free == pages.count
        assert len(pages.index) == 0
    assert with_cache.engine.pages.evictable > 0
    assert_idle(without)
