"""Attempts and plans as people write them down: `attempts.toml` and `plan.toml`."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from alula.diagnosis.chains import chains
from alula.diagnosis.changes import Change
from alula.errors import UsageError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_RANKS = ("--tp", "--tp-size", "-tp", "--tensor-parallel-size")
_ATTEMPT = {
    "name": str,
    "command": str,
    "log": (str, list),
    "exit_code": int,
    "report": str,
    "tokens_per_second": (int, float),
    "feature": str,
}
_BASELINE = {"command": str, "report": str, "tokens_per_second": (int, float)}
_PLAN = {"name": str, "changes": list}


@dataclass(frozen=True)
class Attempt:
    """One run that was tried, or the baseline it is held against."""

    name: str
    command: str = ""
    logs: tuple[Path, ...] = ()
    exit_code: int | None = None
    report: Path | None = None
    tokens_per_second: float | None = None
    feature: str = ""
    """What was tried, where the command does not show it."""

    def settings(self) -> Mapping[str, str]:
        """Options and environment variables of the command; a bare flag has the value ""."""
        found: dict[str, str] = {}
        option = ""
        for word in shlex.split(self.command):
            assignment = _ASSIGNMENT.fullmatch(word)
            if word.startswith("-"):
                option, _, value = word.partition("=")
                found[option] = value
            elif option:
                found[option] = word
                option = ""
            elif assignment is not None:
                found[assignment[1]] = assignment[2]
        return found

    def ranks(self) -> str:
        """The tensor-parallel size, "" where the command does not say it."""
        settings = self.settings()
        return next((settings[name] for name in _RANKS if name in settings), "")


@dataclass(frozen=True)
class Plan:
    """A change of the stack that somebody has in mind."""

    name: str
    changes: tuple[Change, ...]


def read_attempts(path: Path) -> tuple[Attempt | None, tuple[Attempt, ...]]:
    """The baseline, if any, and the attempts; their files lie beside the file.

    Raises `UsageError` for a file that is not of this form.
    """
    data = _load(path, {"baseline": dict, "attempt": list})
    entries = data.get("attempt", [])
    if not entries:
        raise _malformed(path, "it holds no [[attempt]]")
    baseline = data.get("baseline")
    if baseline is not None:
        _check_keys(path, "baseline", baseline, _BASELINE)
    attempts = tuple(_attempt(path, number, entry) for number, entry in enumerate(entries, 1))
    names = [attempt.name for attempt in attempts]
    if len(set(names)) < len(names):
        raise _malformed(path, "two attempts have the same name")
    return (None if baseline is None else _built(path, "baseline", baseline)), attempts


def read_plan(path: Path) -> Plan:
    """A plan. Raises `UsageError` for a file that is not of this form."""
    data = _load(path, _PLAN)
    try:
        changes = tuple(Change.parse(str(text)) for text in data.get("changes", []))
    except ValueError as error:
        raise _malformed(path, str(error)) from error
    if not changes:
        raise _malformed(path, "it holds no changes")
    components = [change.component for change in changes]
    for change in changes:
        if components.count(change.component) > 1:
            raise _malformed(path, f"it changes {change.component} twice")
    return Plan(data.get("name", path.stem), changes)


def _attempt(path: Path, number: int, entry: Any) -> Attempt:
    if not isinstance(entry, dict):
        raise _malformed(path, f"attempt {number} is no table")
    _check_keys(path, f"attempt {number}", entry, _ATTEMPT)
    if not entry.get("name"):
        raise _malformed(path, f"attempt {number} has no name")
    feature = entry.get("feature", "")
    if feature and feature not in chains().features:
        known = ", ".join(sorted(chains().features))
        raise _malformed(path, f"{feature!r} in attempt {number} is not one of {known}")
    return _built(path, entry["name"], entry)


def _built(path: Path, name: str, entry: Mapping[str, Any]) -> Attempt:
    logs = _logs(entry.get("log", []))
    attempt = Attempt(
        name=name,
        command=entry.get("command", ""),
        logs=tuple(path.parent / log for log in logs),
        exit_code=entry.get("exit_code"),
        report=path.parent / entry["report"] if "report" in entry else None,
        tokens_per_second=entry.get("tokens_per_second"),
        feature=entry.get("feature", ""),
    )
    try:
        attempt.settings()
    except ValueError as error:
        raise _malformed(path, f"the command of {name} is no shell command: {error}") from error
    return attempt


def _logs(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _load(path: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _malformed(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _malformed(path, str(error)) from error
    _check_keys(path, "the file", data, keys)
    return data


def _check_keys(path: Path, where: str, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        if key not in keys:
            raise _malformed(path, f"{where} has {key!r}, which is not one of {', '.join(keys)}")
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            raise _malformed(path, f"{key} in {where} is of the wrong type")
        if isinstance(value, float | int) and key == "tokens_per_second" and not 0 < value < inf:
            raise _malformed(path, f"{key} in {where} is {value}, which is no figure")
        if key == "log" and not all(isinstance(log, str) and log for log in _logs(value)):
            raise _malformed(path, f"log in {where} names no file")


def _malformed(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not understood", why, "docs/diagnose.md shows the form of the file"
    )
