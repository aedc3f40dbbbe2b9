"""A user's own prompts for training: read, checked, and answered by the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alula.errors import UsageError

_SHOWN = 5


class Given(NamedTuple):
    """The prompts of a file."""

    conversations: list[list[dict[str, str]]]
    """Messages, the last of them a user's."""
    bad: list[str]
    """What is wrong with the lines that were left out, one each."""

    def report(self) -> str:
        """How many lines are used, and the first that are not."""
        shown = "; ".join(self.bad[:_SHOWN]) + (" …" if len(self.bad) > _SHOWN else "")
        left_out = f", {len(self.bad)} left out ({shown})" if self.bad else ""
        return f"{len(self.conversations)} prompts{left_out}"


def read_prompts(path: Path) -> Given:
    """Lines of {"prompt": text} or {"messages": [{"role", "content"}, …]}.

    Raises UsageError where the file cannot be read or holds no good line.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}", error.strerror or str(error), "name a file of prompts"
        ) from error
    good, bad = [], []
    for number, line in enumerate(lines, start=1):
        try:
            good.append(_parse(line))
        except ValueError as error:
            bad.append(f"line {number}: {error}")
    if not good:
        raise UsageError(
            f"{path} holds no prompt that can be used",
            "; ".join(bad[:_SHOWN]) or "it is empty",
            'a line is {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}',
        )
    return Given(good, bad)


def _parse(line: bytes) -> list[dict[str, str]]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if isinstance(value.get("prompt"), str):
        value = {"messages": [{"role": "user", "content": value["prompt"]}]}
    messages = _messages(value.get("messages"))
    while messages and messages[-1]["role"] != "user":
        messages.pop()  # the model gives its own answer
    if not messages or not messages[-1]["content"].strip():
        raise ValueError("no user's words to answer")
    return messages


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError("neither prompt nor messages")
    found = []
    for message in value:
        good = isinstance(message, dict) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not good:
            raise ValueError("a message without role and content")
        found.append({"role": message["role"], "content": message["content"]})
    return found
