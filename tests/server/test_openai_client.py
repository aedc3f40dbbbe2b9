"""The official client against a real server: every feature, streaming and not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from alula import LLM, SamplingParams
from serving import ServerProcess

MESSAGES: Any = [{"role": "user", "content": "Tell me about wings."}]


@pytest.fixture(scope="module")
def llm(tool_model: Path) -> LLM:
    return LLM(str(tool_model), speculation="off", dtype="float32")


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    defaults = {"model": "model", "messages": MESSAGES, "max_tokens": 16, "temperature": 0.0}
    return client.chat.completions.create(**(defaults | fields))


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    defaults = {"model": "model", "prompt": "Wings are", "max_tokens": 16, "temperature": 0.0}
    return client.completions.create(**(defaults | fields))


def streamed(chunks: Iterator[Any]) -> tuple[str, list[Any]]:
    found = list(chunks)
    text = "".join(c.choices[0].delta.content or "" for c in found if c.choices)
    return text, found


def test_an_answer_is_the_engines_own(client: openai.OpenAI, llm: LLM) -> None:
    for seed in range(3):
        params = SamplingParams(temperature=0.7, top_p=0.9, seed=seed, max_tokens=24)
        (expected,) = llm.chat(MESSAGES, params)
        found = ask(client, temperature=0.7, top_p=0.9, seed=seed, max_tokens=24)
        (choice,) = found.choices
        assert choice.message.content == expected.outputs[0].text
        assert choice.finish_reason == expected.outputs[0].finish_reason
        assert choice.message.role == "assistant"
        assert found.object == "chat.completion"
        assert found.usage.prompt_tokens == len(expected.prompt_token_ids)
        assert found.usage.completion_tokens == len(expected.outputs[0].token_ids)


def test_a_streamed_answer_is_the_same(client: openai.OpenAI) -> None:
    whole = ask(client, temperature=1.0, seed=5)
    text, chunks = streamed(ask(client, temperature=1.0, seed=5, stream=True))
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_where_it_is_asked_for(client: openai.OpenAI) -> None:
    whole = ask(client)
    _, chunks = streamed(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_usage_so_far_comes_with_every_chunk_where_it_is_asked_for(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    _, chunks = streamed(ask(client, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] == 16


def test_usage_counts_cached_and_accepted_tokens(client: openai.OpenAI) -> None:
    words = "one two three four five six seven eight nine ten " * 3
    prompt = words * 2
    ask(client, messages=[{"role": "user", "content": prompt}])
    found = ask(client, messages=[{"role": "user", "content": prompt}], max_tokens=64)
    usage = found.usage
    assert 32 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    details = usage.completion_tokens_details
    rounds = found.model_extra["alula"]["rounds"]
    # The first token comes from the prompt, the last round may be cut before its own.
    assert details.accepted_prediction_tokens + 1 + rounds - usage.completion_tokens in (0, 1)
    assert details.accepted_prediction_tokens > 0, "the prompt repeats itself, and so do answers"


def test_several_samples_of_one_prompt(client: openai.OpenAI) -> None:
    found = ask(client, n=3, temperature=1.0, seed=1)
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in found.choices}) > 1
    texts = {0: "", 1: "", 2: ""}
    for chunk in ask(client, n=3, temperature=1.0, seed=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in found.choices}


def test_a_seed_repeats_an_answer_and_is_named(client: openai.OpenAI) -> None:
    free = ask(client, temperature=1.0)
    seed = free.model_extra["alula"]["seed"]
    again = ask(client, temperature=1.0, seed=seed)
    assert again.choices[0].message.content == free.choices[0].message.content
    assert ask(client, temperature=1.0).model_extra["alula"]["seed"] != seed


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_across_token_borders(client: openai.OpenAI, stream: bool) -> None:
    full = ask(client, max_tokens=40).choices[0].message.content
    stop = full[10:14]
    expected = full[: full.index(stop)]
    found = ask(client, max_tokens=40, stop=["never comes", stop], stream=stream)
    text = streamed(found)[0] if stream else found.choices[0].message.content
    assert text == expected


def test_logprobs_of_a_chat_are_the_same_streamed(client: openai.OpenAI) -> None:
    found = ask(client, logprobs=True, top_logprobs=3)
    content = found.choices[0].logprobs.content
    assert len(content) == found.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob, "greedy takes the likeliest"
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    _, chunks = streamed(ask(client, logprobs=True, top_logprobs=3, stream=True))
    parts = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert [entry for part in parts for entry in part.content] == content


def test_streamed_logprobs_leave_out_what_a_stop_string_cuts(client: openai.OpenAI) -> None:
    full = ask(client, max_tokens=40).choices[0].message.content
    fields = {"max_tokens": 40, "stop": full[10:14], "logprobs": True}
    content = ask(client, **fields).choices[0].logprobs.content
    _, chunks = streamed(ask(client, **fields, stream=True))
    parts = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert [entry for part in parts for entry in part.content] == content


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=2).choices[0]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 16
    assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
    assert all(len(top) <= 2 for top in choice.logprobs.top_logprobs)


def test_completions_take_text_lists_and_token_ids(client: openai.OpenAI, llm: LLM) -> None:
    ids = llm.model.tokenizer.encode("Wings are")
    text = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == text
    many = complete(client, prompt=["Birds", "Wings are"], n=2, temperature=1.0, seed=3)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    alone = complete(client, prompt=["Wings are"], n=2, temperature=1.0, seed=3)
    assert [c.text for c in many.choices[2:]] == [c.text for c in alone.choices]
    assert complete(client, prompt=[ids, ids]).choices[1].text == text
    pieces = "".join(c.choices[0].text for c in complete(client, stream=True))
    assert pieces == text


def test_bias_penalties_and_filters_reach_the_sampler(client: openai.OpenAI, llm: LLM) -> None:
    letter = llm.model.tokenizer.encode("q")[0]
    forced = ask(client, logit_bias={str(letter): 100}, max_tokens=4)
    assert forced.choices[0].message.content == "qqqq"
    penalised = ask(
        client, logit_bias={str(letter): 20}, frequency_penalty=2.0, presence_penalty=2.0
    )
    assert penalised.choices[0].message.content != "q" * 16
    greedy = ask(client).choices[0].message.content
    for extra in ({"top_k": 1}, {"min_p": 1.0}, {"top_k": 5, "min_p": 1.0}):
        found = ask(client, temperature=1.0, seed=9, extra_body=extra)
        assert found.choices[0].message.content == greedy
    repeated = ask(client, extra_body={"repetition_penalty": 1.5})
    assert repeated.choices[0].message.content != greedy


def test_lengths_and_ends(client: openai.OpenAI) -> None:
    found = ask(client, max_tokens=openai.NOT_GIVEN, max_completion_tokens=3)
    assert (found.usage.completion_tokens, found.choices[0].finish_reason) == (3, "length")
    # The tiny model's end of sequence is token 2.
    ended = ask(client, logit_bias={"2": 100}, max_tokens=5)
    assert (ended.choices[0].message.content, ended.choices[0].finish_reason) == ("", "stop")
    ignored = ask(client, logit_bias={"2": 100}, max_tokens=5, extra_body={"ignore_eos": True})
    assert ignored.choices[0].finish_reason == "length"


def test_parts_of_text_are_one_text(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "about wings."}]
    found = ask(client, messages=[{"role": "user", "content": parts}])
    assert found.choices[0].message.content == ask(client).choices[0].message.content


def test_drafted_tokens_are_told_from_others(client: openai.OpenAI) -> None:
    fields: Any = {"max_tokens": 48, "extra_body": {"return_drafted": True}}
    text, chunks = streamed(ask(client, **fields, stream=True))
    choices = [chunk.choices[0] for chunk in chunks]
    tokens = [token for choice in choices for token in choice.model_extra.get("drafted", [])]
    assert len(tokens) == 48
    assert {token["drafted"] for token in tokens} == {True, False}
    shown = b"".join(bytes(token["bytes"]) for token in tokens)
    assert shown.decode(errors="replace") == text


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["model"]
    assert client.models.retrieve("model").model_extra["max_model_len"] == 1024
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        ask(client, model="other")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra_body": {"mystery": 1}}, "mystery"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"modalities": ["audio"]}, "modalities.0"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"top_p": 0}, "top_p"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 4000}, "context"),
        ({"n": 1000}, "samples"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    body: Any = caught.value.body
    assert set(body) == {"message", "type", "param", "code"}
    assert body["type"] == "invalid_request_error"
    assert named in f"{body['message']} {body['param']}"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": [999999]}, "the prompt"),
        ({"prompt": "x" * 3000}, "context"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_completions_refuse_by_name(
    client: openai.OpenAI, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=named):
        complete(client, **fields)


def test_embeddings_are_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings is not supported"):
        client.embeddings.create(model="model", input="text")


def test_unknown_paths_have_openai_errors_too(server: ServerProcess) -> None:
    found = server.get("/v1/images")
    assert (found.status_code, found.json()["error"]["type"]) == (404, "invalid_request_error")
