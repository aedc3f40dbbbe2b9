"""Structured output and tools through the official client, with speculation on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from alula.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["bird", "plane"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "look_up", "description": "Look a bird up.", "parameters": SCHEMA},
}
OTHER: Any = {"type": "function", "function": {"name": "stop"}}


def ask(client: openai.OpenAI, content: str = "A bird, please.", **fields: Any) -> Any:
    defaults = {
        "model": "model",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 200,
        "seed": 3,
    }
    return client.chat.completions.create(**(defaults | fields))


def test_a_json_schema_is_kept(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "bird", "schema": SCHEMA}}
    for seed in range(3):
        (choice,) = ask(client, response_format=wanted, seed=seed).choices
        found = json.loads(choice.message.content)
        assert set(found) == {"name", "kind", "count"}
        assert found["kind"] in ("bird", "plane")
        assert choice.finish_reason == "stop"


def test_a_json_object_is_an_object(client: openai.OpenAI, tool_model: Path) -> None:
    closing = Tokenizer.from_folder(tool_model).encode("}")[0]
    wanted = {"type": "json_object"}
    (choice,) = ask(client, response_format=wanted, logit_bias={str(closing): 12}).choices
    assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("stream", [False, True])
def test_a_regex_and_a_grammar_are_kept(client: openai.OpenAI, stream: bool) -> None:
    for extra, pattern in (
        ({"guided_regex": r"[a-f]{8}-[0-9]{4}"}, r"[a-f]{8}-[0-9]{4}"),
        ({"guided_grammar": 'start: "yes" | "no"'}, "yes|no"),
    ):
        found = ask(client, extra_body=extra, stream=stream)
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in found)
        else:
            text = found.choices[0].message.content
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look_up"}}]
)
def test_a_call_can_be_forced(client: openai.OpenAI, choice: Any) -> None:
    found = ask(client, tools=[TOOL], tool_choice=choice).choices[0]
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert call.function.name == "look_up"
    assert set(json.loads(call.function.arguments)) == {"name", "kind", "count"}
    assert found.message.content is None


def test_a_forced_call_streams_as_a_call(client: openai.OpenAI) -> None:
    whole = ask(client, tools=[TOOL], tool_choice="required").choices[0]
    chunks = list(ask(client, tools=[TOOL], tool_choice="required", stream=True))
    calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
    assert [call.function.arguments for call in calls] == [
        call.function.arguments for call in whole.message.tool_calls
    ]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_and_results_reach_the_template(client: openai.OpenAI) -> None:
    plain = ask(client, max_tokens=2)
    with_tools = ask(client, max_tokens=2, tools=[TOOL])
    without = ask(client, max_tokens=2, tools=[TOOL], tool_choice="none")
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens + 50
    assert without.usage.prompt_tokens == plain.usage.prompt_tokens
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"name": "tit"}'},
    }
    messages = [
        {"role": "user", "content": "A bird, please."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is a tit."},
    ]
    assert ask(client, messages=messages, max_tokens=2, tools=[TOOL]).choices


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra_body": {"guided_regex": "["}}, "guided_regex"),
        ({"extra_body": {"guided_grammar": "start: ("}}, "guided_grammar"),
        ({"extra_body": {"guided_regex": "a", "guided_grammar": 'start: "a"'}}, "exclude"),
        ({"extra_body": {"guided_regex": "a", "ignore_eos": True}}, "ignore_eos"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "wrong"}},
                }
            },
            "response_format",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [OTHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [OTHER], "response_format": {"type": "json_object"}}, "exclude"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=named):
        ask(client, **fields)
