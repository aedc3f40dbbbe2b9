"""Gates behind gates: what opening the first one meets next."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from alula.diagnosis.changes import Change
from alula.diagnosis.facts import Condition, Facts, all_hold
from alula.diagnosis.signatures import Ruling, conditions, ruling_of
from alula.machine.gate import Gate, GateVerdict, Layer

_VERDICTS = {True: GateVerdict.CLOSED, False: GateVerdict.OPEN, None: GateVerdict.UNKNOWN}


@dataclass(frozen=True)
class KnownGate:
    """A gate of `chains.toml`, before it is held against facts."""

    gate: Gate
    closed_when: tuple[Condition, ...]
    opened_by: Change | None
    sources: tuple[str, ...]

    def verdict(self, facts: Facts) -> GateVerdict:
        """What the gate does under these facts."""
        return _VERDICTS[all_hold(self.closed_when, facts)]

    def ahead(self, facts: Facts) -> str:
        """The release with which an open gate closes, "" where none does."""
        against = [condition for condition in self.closed_when if condition.holds(facts) is False]
        later = [condition for condition in against if condition.operator == ">="]
        return f"{later[0].name} {later[0].value}" if later and later == against else ""


@dataclass(frozen=True)
class Suspect:
    """What a figure below the baseline most likely means where a feature was asked for."""

    name: str
    asked_by: tuple[str, ...]
    ruling: Ruling
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Chains:
    """Everything `chains.toml` holds."""

    gates: tuple[KnownGate, ...]
    suspects: tuple[Suspect, ...]
    confounders: frozenset[str]
    noise: float
    """Share of the baseline by which repeated runs differ."""

    @property
    def features(self) -> frozenset[str]:
        """The names of all features that a gate or a suspect belongs to."""
        suspects = (suspect.ruling.feature for suspect in self.suspects)
        return frozenset({*(known.gate.feature for known in self.gates), *suspects} - {""})

    def of(self, feature: str) -> tuple[KnownGate, ...]:
        """The chain of a feature, in the order in which one meets it."""
        return tuple(known for known in self.gates if known.gate.feature == feature)


@cache
def chains() -> Chains:
    """The chains that ship with alula."""
    data = tomllib.loads(files("alula.diagnosis").joinpath("chains.toml").read_text("utf-8"))
    return Chains(
        gates=tuple(_gate(entry) for entry in data["gate"]),
        suspects=tuple(_suspect(entry) for entry in data["suspect"]),
        confounders=frozenset(data["confounders"]),
        noise=data["noise"],
    )


def met(chain: Iterable[KnownGate], facts: Facts) -> tuple[tuple[KnownGate, str], ...]:
    """The gates that opening one after the other meets, each with when it is met.

    A gate that a change can open is opened, which may close the next: a newer library can want a
    newer toolkit.
    """
    chain = tuple(chain)
    found: dict[KnownGate, str] = {}
    when = "now"
    while True:
        closed = [known for known in chain if known.verdict(facts) is GateVerdict.CLOSED]
        fresh = [known for known in closed if known not in found]
        if not fresh:
            break
        found |= dict.fromkeys(fresh, when)
        changes = [known.opened_by for known in fresh if known.opened_by is not None]
        for change in changes:
            facts = change.apply(facts)
        when = "after " + ", ".join(map(str, changes))
    later = {known: known.ahead(facts) for known in chain if known not in found}
    found |= {known: f"from {release} on" for known, release in later.items() if release}
    return tuple(found.items())


def observed(known: KnownGate, facts: Facts, reported: Iterable[Gate]) -> Gate:
    """The gate as it stands, with the file and line that the doctor found where it did."""
    gate = replace(known.gate, verdict=known.verdict(facts))
    for other in reported:
        same = (other.feature, other.layer, other.verdict)
        if same == (gate.feature, gate.layer, gate.verdict) and _same_owner(gate, other):
            return replace(gate, evidence=other.evidence, observed=other.observed)
    values = (f"{condition.name} {facts.get(condition.name)}" for condition in known.closed_when)
    return replace(gate, observed=", ".join(dict.fromkeys(values)))


def _same_owner(gate: Gate, other: Gate) -> bool:
    """Whether the doctor's gate, which names a release, is ours, which may not know the package."""
    return gate.component.startswith("the ") or other.component.split(" ")[0] == gate.component


def _gate(entry: dict[str, Any]) -> KnownGate:
    opened_by = Change.parse(entry["opened_by"]) if "opened_by" in entry else None
    gate = Gate(
        component=entry["component"],
        feature=entry["feature"],
        layer=Layer(entry["layer"]),
        predicate=entry["predicate"],
        observed="",
        verdict=GateVerdict.UNKNOWN,
        evidence=entry["evidence"],
        opened_in=str(opened_by or ""),
    )
    return KnownGate(gate, conditions(entry["closed_when"]), opened_by, tuple(entry["sources"]))


def _suspect(entry: dict[str, Any]) -> Suspect:
    asked_by = tuple(entry["asked_by"])
    return Suspect(entry["id"], asked_by, ruling_of(entry), tuple(entry["sources"]))
