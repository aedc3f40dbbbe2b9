"""Tools through a chat template of Llama's structure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from alula.text.tokenizer import Tokenizer
from serving import ServerProcess
from tiny import write_tiny_model

TEMPLATE = Path(__file__).parents[1] / "templates" / "llama3.jinja"
PLACES: Any = {
    "$defs": {"place": {"enum": ["north", "south"]}},
    "type": "object",
    "properties": {"to": {"$ref": "#/$defs/place"}},
    "required": ["to"],
    "additionalProperties": False,
}
FLY: Any = {"type": "function", "function": {"name": "fly", "parameters": PLACES}}
CALL: Any = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "fly", "arguments": '{"to": "south"}'},
}
ASKED: Any = {"role": "user", "content": "Fly."}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_tiny_model(tmp_path_factory.mktemp("llama") / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text())
    with ServerProcess(folder, "--speculation", "chain:4", "--dtype", "float32") as started:
        yield started


def ask(server: ServerProcess, **fields: Any) -> Any:
    defaults = {"model": "model", "messages": [ASKED], "tools": [FLY], "max_tokens": 90, "seed": 1}
    with server.client() as client:
        found = client.chat.completions.create(**(defaults | fields))
        return list(found) if fields.get("stream") else found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "fly"}}])
def test_a_call_is_forced_and_read(llama: ServerProcess, choice: Any) -> None:
    (found,) = ask(llama, tool_choice=choice).choices
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert call.function.name == "fly"
    assert json.loads(call.function.arguments)["to"] in ("north", "south")
    *_, told, last = ask(llama, tool_choice=choice, stream=True)
    assert last.choices[0].finish_reason == "tool_calls"
    assert told.choices[0].delta.tool_calls[0].function.arguments == call.function.arguments


def test_several_calls_in_one_answer_are_told_apart(llama: ServerProcess) -> None:
    said = r'\{"name": "fly", "parameters": \{("to": "[a-d]")?\}\}'
    guided = {"guided_regex": f"{said}; {said}"}
    both = {"tool_choice": "auto", "max_tokens": 120, "extra_body": guided}
    (found,) = ask(llama, **both).choices
    assert found.finish_reason == "tool_calls"
    assert found.message.content is None
    first, second = found.message.tool_calls
    assert first.id != second.id
    assert {first.function.name, second.function.name} == {"fly"}
    streamed = [
        call
        for chunk in ask(llama, stream=True, **both)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    assert [call.index for call in streamed] == [0, 1]
    assert streamed[1].function.arguments == second.function.arguments


def test_free_answers_are_text(llama: ServerProcess) -> None:
    (found,) = ask(llama, tool_choice="auto", max_tokens=5, logit_bias={"5": 50}).choices
    assert found.message.tool_calls is None
    assert found.finish_reason == "length"


def test_a_strict_function_keeps_its_schema_unforced(
    llama: ServerProcess, tool_model: Path
) -> None:
    opening = Tokenizer.from_folder(tool_model).encode("{")[0]
    strict = {"type": "function", "function": FLY["function"] | {"strict": True}}
    bias = {str(opening): 100}
    (found,) = ask(llama, tools=[strict], tool_choice="auto", logit_bias=bias).choices
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert json.loads(call.function.arguments)["to"] in ("north", "south")
    (loose,) = ask(llama, tool_choice="auto", logit_bias=bias).choices
    assert loose.message.tool_calls is None


def test_results_and_empty_lists_of_calls_reach_the_template(llama: ServerProcess) -> None:
    call = ask(llama, tool_choice="required").choices[0].message.tool_calls[0].model_dump()
    talk = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "Flown."},
        {"role": "assistant", "content": "Done.", "tool_calls": []},
        ASKED,
    ]
    found, short = (
        ask(llama, messages=messages, max_tokens=2, tool_choice="none")
        for messages in (talk, talk[:1])
    )
    assert found.usage.prompt_tokens > short.usage.prompt_tokens + 30


def test_what_the_template_refuses_is_the_requests_fault(llama: ServerProcess) -> None:
    two = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
    with pytest.raises(openai.BadRequestError, match="One call at a time"):
        ask(llama, messages=[ASKED, two])
    with pytest.raises(openai.BadRequestError, match="chat template failed"):
        ask(llama, extra_body={"chat_template_kwargs": {"date_string": 5}})
    wrong = {"type": "function", "function": {"name": "fly", "parameters": {"type": "string"}}}
    with pytest.raises(openai.BadRequestError, match="no object"):
        ask(llama, tools=[wrong], tool_choice="required")
