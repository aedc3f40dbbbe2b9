"""The built-in model behind the official client: every feature, in few tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from serving import ServerProcess


@pytest.fixture(scope="module")
def smollm2() -> Iterator[openai.OpenAI]:
    with ServerProcess("smollm2", "--speculation", "chain:3") as server, server.client() as opened:
        yield opened


def ask(client: openai.OpenAI, content: str, **fields: Any) -> Any:
    defaults = {
        "model": "model",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 12,
        "temperature": 0.0,
    }
    return client.chat.completions.create(**(defaults | fields))


def text_of(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_it_answers_whole_and_streamed(smollm2: openai.OpenAI) -> None:
    question = "What is the capital of France? Answer with one word."
    whole = ask(smollm2, question, logprobs=True, top_logprobs=2)
    content = whole.choices[0].message.content
    assert "Paris" in content
    assert "".join(t.token for t in whole.choices[0].logprobs.content).startswith(content)
    options = {"include_usage": True}
    chunks = list(ask(smollm2, question, stream=True, stream_options=options))
    assert text_of(chunks) == content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 32
    stopped = ask(smollm2, question, stop=content[2:4])
    assert stopped.choices[0].message.content == content[:2]


def test_samples_seeds_penalties_and_filters(smollm2: openai.OpenAI) -> None:
    fields: Any = {
        "n": 2,
        "seed": 7,
        "temperature": 0.9,
        "top_p": 0.95,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "extra_body": {"top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1},
        "max_tokens": 8,
    }
    first, again = (ask(smollm2, "Name a bird.", **fields) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[0] != texts[1]


def test_completions_stream_and_draft(smollm2: openai.OpenAI) -> None:
    fields: Any = {"model": "model", "max_tokens": 16, "temperature": 0.0}
    prompt = "one two three four one two three four one two three"
    whole = smollm2.completions.create(prompt=prompt, **fields)
    chunks = smollm2.completions.create(prompt=prompt, stream=True, **fields)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens > 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept(smollm2: openai.OpenAI, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    fields: Any = {"response_format": wanted, "max_tokens": 40, "stream": stream}
    found = ask(smollm2, "The capital of France, as JSON.", **fields)
    text = text_of(found) if stream else found.choices[0].message.content
    assert json.loads(text)["city"] == "Paris"


def test_tools_are_refused_without_a_template_for_them(smollm2: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "fly"}}
    with pytest.raises(openai.BadRequestError, match="tools are not supported"):
        ask(smollm2, "Fly!", tools=[tool])


@pytest.mark.parametrize("stream", [False, True])
def test_bias_lengths_and_logprobs(smollm2: openai.OpenAI, stream: bool) -> None:
    free = ask(smollm2, "Count to three.", logprobs=True, top_logprobs=1)
    first = free.choices[0].logprobs.content[0].token
    fields: Any = {"logprobs": True, "top_logprobs": 3, "stream": stream}
    fields |= {"max_tokens": openai.omit, "max_completion_tokens": 9}
    fields |= {"extra_body": {"ignore_eos": True}, "logit_bias": {"198": 100}}  # a line's end
    found = ask(smollm2, "Count to three.", **fields)
    choices = [c.choices[0] for c in found if c.choices] if stream else found.choices
    content = [e for c in choices if c.logprobs for e in c.logprobs.content]
    assert [entry.token for entry in content] == ["\n"] * 9 != [first] * 9
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert content[0].logprob < content[0].top_logprobs[0].logprob, "of the unmodified logits"
    assert choices[-1].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"extra_body": {"guided_regex": "[a-f]{4}-[0-9]{2}"}}, "[a-f]{4}-[0-9]{2}"),
        ({"extra_body": {"guided_grammar": 'start: "yes" | "no"'}}, "yes|no"),
        ({"response_format": {"type": "json_object"}, "max_tokens": 60}, r"(?s)\{.*"),
    ],
)
def test_grammars_are_kept(
    smollm2: openai.OpenAI, fields: dict[str, Any], pattern: str, stream: bool
) -> None:
    found = ask(smollm2, "Answer as JSON: is water wet?", stream=stream, **fields)
    text = text_of(found) if stream else found.choices[0].message.content
    assert re.fullmatch(pattern, text)


def test_models_are_listed_and_embeddings_refused(smollm2: openai.OpenAI) -> None:
    assert [model.id for model in smollm2.models.list()] == ["model"]
    with pytest.raises(openai.APIStatusError, match="embeddings"):
        smollm2.embeddings.create(model="model", input="x")
