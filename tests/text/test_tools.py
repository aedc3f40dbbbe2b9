"""Tool calls are told from text, however the text is cut into pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from alula.text.chat_template import ChatTemplate
from alula.text.tools import Call, ToolForm, ToolReader, forced_grammar, free_grammar, tool_form

CALL = '<tool_call>\n{"name": "fly", "arguments": {"to": "the <tool_call> south"}}\n</tool_call>'
FLY = Call("fly", '{"to": "the <tool_call> south"}')


def read(form: ToolForm, text: str, cuts: list[int]) -> list[str | Call]:
    reader = ToolReader(form)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    found: list[str | Call] = []
    for start, end in pairwise(places):
        found += reader.push(text[start:end])
    return joined(found + reader.finish())


def joined(parts: list[str | Call]) -> list[str | Call]:
    found: list[str | Call] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_hermes_calls_are_found_between_text(cuts: list[int]) -> None:
    found = read("hermes", f"I will <do> it.{CALL}\n{CALL}", cuts)
    assert found == ["I will <do> it.", FLY, FLY]


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_what_is_no_call_stays_text(cuts: list[int]) -> None:
    for text in ("a < b and <tool", "<tool_call>{}</tool_call>", "<tool_call>\n{", "{}", ""):
        assert read("hermes", text, cuts) == ([text] if text else [])
    for text in ("No {call}", '{"a": 1}', '{"name": "fly", "parameters"', "text"):
        assert read("llama", text, cuts) == [text]


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_a_llama_call_is_the_whole_answer(cuts: list[int]) -> None:
    found = read("llama", ' {"name": "fly", "parameters": {"n": 2}}', cuts)
    assert found == [Call("fly", '{"n": 2}')]


@pytest.mark.parametrize("between", [";", "; ", " ;\n"])
@pytest.mark.parametrize("end", ["", ";", "\n"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_several_llama_calls_are_joined_by_semicolons(
    between: str, end: str, cuts: list[int]
) -> None:
    """A semicolon, a brace or half a call inside of an argument is none of them."""
    odd = '{"name": "fly", "parameters": {"to": "a; {\\"name\\": \\"b\\"}; c"}}'
    text = between.join(['{"name": "land", "parameters": {}}', odd, odd]) + end
    fly = Call("fly", '{"to": "a; {\\"name\\": \\"b\\"}; c"}')
    assert read("llama", text, cuts) == [Call("land", "{}"), fly, fly]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "fly", "parameters": {}}, {"name": "fly", "parameters": {}}',
        '{"name": "fly", "parameters": {}} {"name": "fly", "parameters": {}}',
        '{"name": "fly", "parameters": {}}; {"name": "fl',
        '{"name": "fly", "parameters": {}}; and text',
        '{"name": "fly", "parameters": {}}; {"no": "call"}',
        '{"name": "fly", "parameters": {}};;{"name": "fly", "parameters": {}}',
        '{"a": ' + "[" * 100_000,
    ],
)
def test_llama_calls_beside_anything_else_are_text(text: str) -> None:
    assert read("llama", text, []) == [text]


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ('{% if tools %}{"name": x, "parameters": y}{% endif %}', "llama"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", None),
    ],
)
def test_the_template_tells_the_form(source: str, form: ToolForm | None) -> None:
    assert tool_form(ChatTemplate(source)) == form


def test_arguments_are_json() -> None:
    assert json.loads(FLY.arguments) == {"to": "the <tool_call> south"}


def test_the_form_of_llama_is_read_from_its_template() -> None:
    source = (Path(__file__).parents[1] / "templates" / "llama3.jinja").read_text()
    assert tool_form(ChatTemplate(source)) == "llama"


class Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def accepted(grammar: str, text: str) -> bool:
    vocabulary = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=256)
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


FUNCTIONS: list[tuple[str, dict[str, Any]]] = [
    (
        "fly",
        {
            "$defs": {"place": {"const": "south"}},
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/place"}},
            "required": ["to"],
            "additionalProperties": False,
        },
    ),
    ("stop", {"type": "object"}),
]
"""References in a schema of arguments begin at its own root."""


def written(form: ToolForm) -> str:
    """A call of the first function."""
    key = "arguments" if form == "hermes" else "parameters"
    call = f'{{"name": "fly", "{key}": {{"to": "south"}}}}'
    return f"<tool_call>\n{call}\n</tool_call>" if form == "hermes" else call


@pytest.mark.parametrize("form", ["hermes", "llama"])
def test_a_forced_call_is_read_again_as_a_call(form: ToolForm) -> None:
    grammar, call = forced_grammar(form, FUNCTIONS), written(form)
    assert accepted(grammar, call)
    assert read(form, call, []) == [Call("fly", '{"to": "south"}')]
    for wrong in (call.replace("south", "north"), call.replace("fly", "swim"), "text", ""):
        assert not accepted(grammar, wrong)


@pytest.mark.parametrize("form", ["hermes", "llama"])
def test_a_free_answer_may_hold_calls_that_keep_their_schemas(form: ToolForm) -> None:
    grammar, call = free_grammar(form, FUNCTIONS), written(form)
    for right in ("", "Text.\n", "a < b and <tool", " x {", call):
        assert accepted(grammar, right), right
    for wrong in (call.replace("south", "north"), call.replace("fly", "swim"), call[:-1]):
        assert not accepted(grammar, wrong), wrong
    if form == "hermes":
        for several in (f"Text. {call}", f"{call}\n{call}", f"{call} and text"):
            assert accepted(grammar, several)
    else:
        assert accepted(grammar, f"{call}; {call};{call}")
        assert not accepted(grammar, f"{call}; {call.replace('south', 'north')}")
        assert not accepted(grammar, f"{call};")
