"""Tool calls inside of a model's text, in the forms that open models write."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from alula.text.chat_template import ChatTemplate

ToolForm = Literal["hermes", "llama"]

_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As models have seen calls in training."""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Call(NamedTuple):
    """A function to call; `arguments` is JSON."""

    name: str
    arguments: str


def tool_form(template: ChatTemplate) -> ToolForm | None:
    """How a model writes calls, by what its chat template teaches it; None where it teaches none.

    Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them.
    Llama 3: the answer is `{"name": …, "parameters": {…}}`, or several of them with `;` between.
    """
    if "tools" not in template.source:
        return None
    if _OPEN in template.source:
        return "hermes"
    return "llama" if '"parameters"' in template.source else None


def forced_grammar(form: ToolForm, functions: list[tuple[str, dict[str, Any]]]) -> str:
    """A Lark grammar, as llguidance reads it, of one call to one of the functions.

    `functions`: names and JSON schemas of their arguments.
    """
    start = "call" if form == "llama" else f'"{_OPEN}\\n" call "\\n{_CLOSE}"'
    return "\n".join([f"start: {start}", *_calls(form, functions)])


def free_grammar(form: ToolForm, functions: list[tuple[str, dict[str, Any]]]) -> str:
    """A Lark grammar of answers that may hold calls: what begins like a call is one."""
    if form == "llama":
        start = ["start: call (/; ?/ call)* | TEXT", r"TEXT: /\s*|\s*[^\s{](?s:.*)/"]
    else:
        start = [
            f'start: (begin call "\\n{_CLOSE}")* TEXT',
            f"begin[lazy]: /(?s:.*){_OPEN}\\n/",
            f"TEXT: ~/(?s:.*{_OPEN}.*)/",
        ]
    return "\n".join([*start, *_calls(form, functions)])


def _calls(form: ToolForm, functions: list[tuple[str, dict[str, Any]]]) -> list[str]:
    key = "arguments" if form == "hermes" else "parameters"
    lines = ["call: " + " | ".join(f"call{number}" for number in range(len(functions)))]
    for number, (name, schema) in enumerate(functions):
        # Each schema is a document of its own: its references begin at its own root.
        lines.append(f"arguments{number}: %json {json.dumps(schema | {'x-guidance': _LAYOUT})}")
        begin = json.dumps(f'{{"name": {json.dumps(name)}, "{key}": ')
        lines.append(f'call{number}: {begin} arguments{number} "}}"')
    return lines


class ToolReader:
    """Tells calls from text as it streams; text that may be the beginning of a call is held."""

    def __init__(self, form: ToolForm) -> None:
        self._form = form
        self._held = ""
        self._begun = False
        self._after_call = False

    def push(self, text: str) -> list[str | Call]:
        """Text that is no call, and calls that are complete, in order."""
        self._held += text
        return self._hermes() if self._form == "hermes" else self._llama()

    def finish(self) -> list[str | Call]:
        """What is left at the end. A call cut short, or no call after all, is text."""
        held, self._held = self._held, ""
        calls = _joined(held) if self._form == "llama" else []
        return [*calls] or ([held] if held else [])

    def _llama(self) -> list[str | Call]:
        """The whole answer is calls, or none of it."""
        if self._begun or (self._held.strip() and not self._held.lstrip().startswith("{")):
            self._begun = True
            shown, self._held = self._held, ""
            return [shown] if shown else []
        return []

    def _hermes(self) -> list[str | Call]:
        found: list[str | Call] = []
        while True:
            self._skip_newlines()
            start = self._held.find(_OPEN)
            end = self._held.find(_CLOSE, start) if start >= 0 else -1
            if end < 0:
                break
            after = end + len(_CLOSE)
            before, inside = self._held[:start], self._held[start + len(_OPEN) : end]
            call = _call(inside, "arguments")
            found += [before] if before else []
            found.append(call or self._held[start:after])
            self._held, self._after_call = self._held[after:], call is not None
        free = start if start >= 0 else len(self._held) - _beginning(self._held)
        if shown := self._held[:free]:
            self._held = self._held[free:]
            found.append(shown)
        return found

    def _skip_newlines(self) -> None:
        """Calls stand on lines of their own; the borders between them are no text."""
        if self._after_call:
            self._held = self._held.lstrip("\n")
            self._after_call = not self._held


def _beginning(text: str) -> int:
    """Length of the longest tail of `text` that begins a call."""
    lengths = range(min(len(text), len(_OPEN) - 1), 0, -1)
    return next((length for length in lengths if _OPEN.startswith(text[-length:])), 0)


def _joined(text: str) -> list[Call]:
    """Llama's calls with `;` between them, and perhaps behind; none where any part is no call."""
    calls: list[Call] = []
    rest = text.strip()
    while rest:
        try:
            found, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        call, rest = _as_call(found, "parameters"), rest[end:].lstrip()
        if call is None or (rest and not rest.startswith(";")):
            return []
        calls.append(call)
        rest = rest[1:].lstrip()
    return calls


def _call(text: str, key: str) -> Call | None:
    try:
        return _as_call(json.loads(text), key)
    except (ValueError, RecursionError):
        return None


def _as_call(found: Any, key: str) -> Call | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get(key, found.get("arguments", {}))
    if not isinstance(arguments, dict):
        return None
    return Call(found["name"], json.dumps(arguments, ensure_ascii=False))
