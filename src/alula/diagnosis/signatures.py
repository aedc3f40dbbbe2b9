"""What failures look like: the signatures of `signatures.toml`, read and checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from alula.diagnosis.facts import Condition, Facts, all_hold
from alula.machine.gate import Layer

LAYERS = frozenset(Layer) | {"setting", "memory", "process"}
_CLASSES = """
arch_gate topology_gate p2p_platform toolkit driver abi no_kernel_image jit_compile nccl_error
hang nccl_timeout graph_capture graph_replay degraded_mode noop_flag oom_load oom_kv oom_capture
oom_runtime leftover host_oom assertion port inconclusive slower quality harness_bug
"""
CLASSES = frozenset(_CLASSES.split())
"""The classes of causes, after the failure taxonomy of public bug reports."""


class Kind(StrEnum):
    """What a line with the signature does to a run."""

    FAILURE = "failure"
    DEGRADED = "degraded"
    NOTE = "note"
    WRAPPER = "wrapper"
    HINT = "hint"


@dataclass(frozen=True)
class Ruling:
    """What a signature means under some facts. Class and layer are "" for notes and wrappers."""

    failure_class: str
    layer: str
    owner: str
    meaning: str
    fix: str
    refuted_by: str
    feature: str
    certain: tuple[Condition, ...] | None
    """The facts that decide it; None where none can."""
    cleared_when: tuple[Condition, ...] | None
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Signature:
    """One failure's look, and its rulings: the first whose conditions all hold counts."""

    name: str
    kind: Kind
    phrases: tuple[str, ...]
    pattern: re.Pattern[str] | None
    depth: int
    quiet: bool
    """Whether servers write this failure at a level below ERROR."""
    requires: tuple[Condition, ...]
    asked_by: tuple[str, ...]
    sources: tuple[str, ...]
    rulings: tuple[Ruling, ...]

    def parts(self, text: str) -> Mapping[str, tuple[str, ...]] | None:
        """The named parts of a line that holds a phrase; None where the pattern does not match."""
        if self.pattern is None:
            return {}
        match = self.pattern.search(text)
        if match is None:
            return None
        named = match.groupdict().items()
        return {f"match.{name}": _listed(value) for name, value in named if value}

    def rule(self, facts: Facts) -> Ruling:
        """The first ruling that the facts call for; the last one is for any."""
        return next(ruling for ruling in self.rulings if all_hold(ruling.when, facts))


@dataclass(frozen=True)
class ExitRule:
    """What an exit status says alone."""

    codes: frozenset[int]
    ruling: Ruling


@dataclass(frozen=True)
class Knowledge:
    """Everything the data file holds."""

    signatures: tuple[Signature, ...]
    triggers: tuple[str, ...]
    alive: tuple[str, ...]
    arguments: tuple[str, ...]
    quoting: tuple[str, ...]
    """Lines with one of these repeat what a client sent, or what it was answered."""
    phases: tuple[tuple[str, str], ...]
    """(marker, name of the phase it begins)."""
    exits: tuple[ExitRule, ...]

    @cached_property
    def phrases(self) -> tuple[str, ...]:
        """The phrases of all signatures, each once."""
        return tuple({phrase for signature in self.signatures for phrase in signature.phrases})

    def candidates(self, text: str) -> list[Signature]:
        """The signatures of which a line holds a phrase, in the order of the file."""
        # Most lines hold none, so this loop is what a log full of errors costs.
        held = {phrase for phrase in self.phrases if phrase in text}
        return (
            [each for each in self.signatures if not held.isdisjoint(each.phrases)] if held else []
        )

    def needles(self) -> list[bytes]:
        """The literals to look for in a log, without those that hold another one."""
        marks = (marker for marker, _ in self.phases)
        words = {*self.triggers, *self.arguments, *marks, *self.phrases}
        least: list[str] = []
        for word in sorted(words, key=len):
            if not any(shorter in word for shorter in least):
                least.append(word)
        return [word.encode() for word in least]


@cache
def knowledge() -> Knowledge:
    """The signatures that ship with alula."""
    text = files("alula.diagnosis").joinpath("signatures.toml").read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> Knowledge:
    """Read a signature file. Raises `ValueError` or `KeyError` for one that is malformed."""
    data = tomllib.loads(text)
    shared = data.get("ruling", {})
    return Knowledge(
        signatures=tuple(_signature(entry, shared) for entry in data["signature"]),
        triggers=tuple(data["triggers"]),
        alive=tuple(data["alive"]),
        arguments=tuple(data["arguments"]),
        quoting=tuple(data["quoting"]),
        phases=tuple((mark, phase["name"]) for phase in data["phase"] for mark in phase["markers"]),
        exits=tuple(
            ExitRule(frozenset(entry["codes"]), ruling_of({"owner": "the process", **entry}))
            for entry in data["exit"]
        ),
    )


def conditions(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Parse the conditions of a data file."""
    return tuple(Condition.parse(text) for text in texts)


def _signature(entry: dict[str, Any], shared: dict[str, Any]) -> Signature:
    base = {**shared.get(entry.get("ruling", ""), {}), **entry}
    kind = Kind(entry.get("kind", "failure"))
    readings = [
        ruling_of({**base, **shared.get(reading.get("ruling", ""), {}), **reading})
        for reading in entry.get("reading", [])
    ]
    default = ruling_of({**base, "when": []})
    signature = Signature(
        name=entry["id"],
        kind=kind,
        phrases=tuple(entry["phrases"]),
        pattern=re.compile(entry["pattern"]) if "pattern" in entry else None,
        depth=entry.get("depth", 1),
        quiet=entry.get("quiet", False),
        requires=conditions(entry.get("requires", [])),
        asked_by=tuple(entry.get("asked_by", [])),
        sources=tuple(entry["sources"]),
        rulings=(*readings, default),
    )
    if kind not in (Kind.NOTE, Kind.WRAPPER):
        _check(signature)
    return signature


def ruling_of(entry: dict[str, Any]) -> Ruling:
    """The ruling in an entry of a data file."""
    certain, cleared = entry.get("certain") or None, entry.get("cleared_when")
    return Ruling(
        failure_class=entry.get("class", ""),
        layer=entry.get("layer", ""),
        owner=entry.get("owner", ""),
        meaning=entry.get("meaning", ""),
        fix=entry.get("fix", ""),
        refuted_by=entry.get("refuted_by", ""),
        feature=entry.get("feature", ""),
        certain=None if certain is None else conditions(certain),
        cleared_when=None if cleared is None else conditions(cleared),
        when=conditions(entry.get("when", [])),
    )


def _check(signature: Signature) -> None:
    for ruling in signature.rulings:
        known = ruling.failure_class in CLASSES and ruling.layer in LAYERS
        if not (known and ruling.fix and ruling.refuted_by and ruling.meaning):
            raise ValueError(f"{signature.name}: class, layer, fix, refuted_by or meaning is wrong")


def _listed(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(","))
