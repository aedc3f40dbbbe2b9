"""What somebody says about a machine: read from a TOML file, every unit in its key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from alula.cost.units import number, whole
from alula.errors import UsageError

_PASSES = ("plain", "verify", "unknown")
_OUTCOMES = ("failed", "slower", "faster", "untested")


@dataclass(frozen=True)
class Claims:
    """The figures that were claimed; None where nothing was."""

    plain_tok_s: float | None = None
    speculative_tok_s: float | None = None
    verify_ms: float | None = None
    """One verification, as measured."""
    allreduces: int | None = None
    """In one launch."""
    allreduce_us: float | None = None
    """Each of them."""
    communication_share: float | None = None
    """Of the time of a verification, between 0 and 1."""
    attempts_failed: int | None = None
    measured_pass: Literal["plain", "verify", "unknown"] = "unknown"
    """`pass` in the file: the pass in which the all-reduces were timed."""


class Attempt(NamedTuple):
    """Something that was tried, and the speed it gave, if any."""

    name: str
    outcome: str
    plain_tok_s: float | None = None


@dataclass(frozen=True)
class Assumed:
    """What the claims leave open and the arithmetic needs."""

    draft_steps: int | None = None
    host_ms: float | None = None


@dataclass(frozen=True)
class Case:
    """A whole file."""

    model: str
    machine: str
    ranks: int | None
    context: int
    claims: Claims
    assumed: Assumed
    attempts: tuple[Attempt, ...]


_NUMBERS = ("plain_tok_s", "speculative_tok_s", "verify_ms", "allreduce_us", "communication_share")
_COUNTS = ("allreduces", "attempts_failed")


def read_case(path: Path) -> Case:
    """Read a claims file. Raises UsageError for what it does not know, a wrong unit included."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path}", str(error), "give a TOML file of claims") from error
    _only(data, ("setting", "claims", "assumed", "attempts"), str(path))
    setting = _table(data, "setting")
    _only(setting, ("model", "machine", "tp", "context_tokens"), "[setting]")
    for key in ("model", "machine"):
        if key not in setting:
            raise UsageError(
                f"{path} names no {key}",
                "[setting] says which model and machine the claims are about",
                f'write {key} = "…" below [setting]',
            )
        if not isinstance(setting[key], str):
            raise _wrong(f"[setting] {key}", setting[key], "a name")
    return Case(
        model=setting["model"],
        machine=setting["machine"],
        ranks=_count(setting, "tp"),
        context=_count(setting, "context_tokens") or 1024,
        claims=_claims(_table(data, "claims")),
        assumed=_assumed(_table(data, "assumed")),
        attempts=_attempts(data.get("attempts", [])),
    )


def _claims(table: Mapping[str, Any]) -> Claims:
    _only(table, (*_NUMBERS, *_COUNTS, "pass"), "[claims]")
    measured = table.get("pass", "unknown")
    if measured not in _PASSES:
        raise _wrong("pass", measured, f"one of {', '.join(_PASSES)}")
    share = _number(table, "communication_share")
    if share is not None and share >= 1:
        raise _wrong("communication_share", share, "a share between 0 and 1")
    if not any(key in table for key in (*_NUMBERS, *_COUNTS)):
        raise UsageError(
            "there is nothing to check",
            "[claims] holds no figure",
            f"claim some of {', '.join((*_NUMBERS, *_COUNTS))}",
        )
    return Claims(
        plain_tok_s=_number(table, "plain_tok_s"),
        speculative_tok_s=_number(table, "speculative_tok_s"),
        verify_ms=_number(table, "verify_ms"),
        allreduces=_count(table, "allreduces"),
        allreduce_us=_number(table, "allreduce_us"),
        communication_share=share,
        attempts_failed=_count(table, "attempts_failed"),
        measured_pass=measured,
    )


def _assumed(table: Mapping[str, Any]) -> Assumed:
    _only(table, ("draft_steps", "host_ms"), "[assumed]")
    host_ms = table.get("host_ms")
    known = None if host_ms is None else number(host_ms, "`host_ms`")
    return Assumed(_count(table, "draft_steps"), known)


def _attempts(entries: object) -> tuple[Attempt, ...]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _wrong("attempts", entries, "[[attempts]] tables")
    found = []
    for entry in entries:
        _only(entry, ("name", "outcome", "plain_tok_s"), "[[attempts]]")
        if not isinstance(entry.get("name"), str):
            raise _wrong("an attempt's name", entry.get("name"), "a text")
        if entry.get("outcome") not in _OUTCOMES:
            raise _wrong("an outcome", entry.get("outcome"), f"one of {', '.join(_OUTCOMES)}")
        found.append(Attempt(entry["name"], entry["outcome"], _number(entry, "plain_tok_s")))
    return tuple(found)


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise _wrong(f"[{key}]", value, "a table")
    return value


def _number(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    found = number(value, f"`{key}`")
    if found == 0:
        raise _wrong(key, value, "a number above zero")
    return found


def _count(table: Mapping[str, Any], key: str) -> int | None:
    value = table.get(key)
    return None if value is None else whole(value, f"`{key}`")


def _only(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.6)
            raise UsageError(
                f"unknown entry `{key}` in {where}",
                f"known are {', '.join(known)}; a key names its unit",
                f"convert the figure and call it `{near[0]}`" if near else "remove it",
            )


def _wrong(what: str, value: object, wanted: str) -> UsageError:
    return UsageError(f"{what} = {value!r} is not understood", f"it is {wanted}", "correct it")
