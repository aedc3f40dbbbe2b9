"""Tool calls are told from text, however the text is cut into pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.text.chat_template import ChatTemplate
from alula.text.tools import Call, ToolForm, ToolReader, tool_form

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
