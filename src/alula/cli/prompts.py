"""Prompts as a person hands them over: an argument, standard input, or a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from alula.errors import UsageError

Conversation = list[dict[str, str]]
Prompt = str | Conversation
_ONE_LINE = 'a line is {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}'


def read(prompt: str | None, file: Path | None) -> list[Prompt]:
    """The prompt given as an argument (`-`: standard input), or those of a file.

    Raises UsageError unless exactly one is given, for invalid UTF-8, for lines that are not
    understood and for empty prompts, by line number.
    """
    if (prompt is None) == (file is None):
        raise UsageError(
            "no prompt was given" if prompt is None else "both --prompt and --prompts were given",
            "exactly one of --prompt TEXT and --prompts FILE is needed",
            'write for example --prompt "Why is the sky blue?", or --prompt - to read it from '
            "standard input",
        )
    if prompt is not None:
        return [_argument(prompt)]
    assert file is not None
    return _file(file)


def checked(text: str, where: str) -> str:
    """Text from the command line or the terminal, where bytes that are no UTF-8 arrive as lone
    surrogates. Raises UsageError for these.
    """
    return _decode(text.encode("utf-8", "surrogateescape"), where)


def _argument(prompt: str) -> str:
    if prompt == "-":
        text = _decode(sys.stdin.buffer.read(), "standard input").removesuffix("\n")
    else:
        text = checked(prompt, "--prompt")
    return _not_empty(text, "standard input" if prompt == "-" else "--prompt")


def _file(path: Path) -> list[Prompt]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}", error.strerror or str(error), "name a file of prompts"
        ) from error
    lines = data.removeprefix(b"\xef\xbb\xbf").splitlines()
    if not lines:
        raise UsageError(f"{path} holds no prompts", "it is empty", "write one prompt per line")
    parse = _parse if path.suffix == ".jsonl" else _not_empty
    return [
        parse(_decode(line, where), where)
        for line, where in ((line, f"{path}, line {n}") for n, line in enumerate(lines, start=1))
    ]


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where} is not valid UTF-8",
            f"{error.reason} at byte {error.start}",
            "save the text as UTF-8",
        ) from error


def _not_empty(text: str, where: str) -> str:
    if not text.strip():
        raise UsageError(
            f"the prompt in {where} is empty",
            "a model continues text, so there must be some",
            "write a prompt there, or take the line out",
        )
    return text


def _parse(line: str, where: str) -> Prompt:
    """One line of JSON Lines."""
    _not_empty(line, where)
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        why = f"not valid JSON: {error.msg} at column {error.colno}"
        raise _misunderstood(where, why) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        raise _misunderstood(where, str(error)) from error
    if not isinstance(value, dict) or set(value) not in ({"prompt"}, {"messages"}):
        raise _misunderstood(where, f"{_keys(value)} instead of exactly prompt or messages")
    if "messages" in value:
        return _conversation(value["messages"], where)
    if not isinstance(value["prompt"], str):
        raise _misunderstood(where, f"prompt is {value['prompt']!r} instead of text")
    return _not_empty(value["prompt"], where)


def _conversation(messages: Any, where: str) -> Conversation:
    if not isinstance(messages, list) or not messages:
        raise _misunderstood(where, "messages must be a list that is not empty")
    for number, message in enumerate(messages, start=1):
        texts = isinstance(message, dict) and all(isinstance(v, str) for v in message.values())
        if not texts or set(message) != {"role", "content"}:
            raise _misunderstood(where, f"message {number} is not a role and a content, both text")
    return messages


def _keys(value: Any) -> str:
    if not isinstance(value, dict):
        return "it is not an object"
    return f"it has {', '.join(map(repr, value)) or 'no keys'}"


def _misunderstood(where: str, why: str) -> UsageError:
    return UsageError(f"{where} is not understood", why, _ONE_LINE)
