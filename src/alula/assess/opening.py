"""What a change does to gates and to attempts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from alula.assess.change import Target, expanded
from alula.assess.situation import Situation
from alula.diagnosis.chains import KnownGate, chains, observed
from alula.diagnosis.changes import Change, applied
from alula.diagnosis.facts import Facts
from alula.diagnosis.together import Judged
from alula.machine.gate import Gate, GateVerdict, Layer

RUNNING = "running"
"""The gates in front of everything: an image, a toolkit that knows the GPU, a driver."""
_OWNERS = {Layer.TOOLKIT: "cuda", Layer.DRIVER: "driver"}
_RELEASE = re.compile(r"(?:flashinfer|CUDA toolkit|driver|vllm|sglang) (\d+(?:\.\d+)*)\b")
"""How the doctor names the release that opens a gate."""
_TOUCHED = 0.5
"""Nobody has looked into the owner's other release: it may open the gate or not."""


@dataclass(frozen=True)
class Standing:
    """One gate before and after the change."""

    gate: Gate
    """As it stands before."""
    before: GateVerdict
    after: GateVerdict
    opener: tuple[Change, ...] = ()
    """The changes without which it would be closed in the end."""
    touched: bool = False
    """Whether the change brings another release of the gate's owner."""
    sources: tuple[str, ...] = ()

    @property
    def opened(self) -> bool:
        """Whether the change opens it.

        Of a feature also where a part of the change would first close it, as a newer library that
        wants a newer toolkit; what has to hold before everything has to be closed today.
        """
        counts = self.before is GateVerdict.CLOSED or self.gate.feature != RUNNING
        return counts and bool(self.opener) and self.after is GateVerdict.OPEN

    @property
    def shut(self) -> bool:
        """Whether the change closes it."""
        return self.before is not GateVerdict.CLOSED and self.after is GateVerdict.CLOSED

    @property
    def probability(self) -> float:
        """That the change opens it: by what is known of the release, else one in two."""
        if self.opened:
            return 1.0
        return _TOUCHED if self.touched and self.after is GateVerdict.UNKNOWN else 0.0


@dataclass(frozen=True)
class Opening:
    """Everything the change does to gates and attempts."""

    standings: tuple[Standing, ...]
    unblocked: Mapping[str, frozenset[str]]
    """Attempts that would run after the change, with the features they were about."""
    asked: frozenset[str]
    """The features that the attempts were about; empty where there are no attempts."""

    def of(self, feature: str) -> tuple[Standing, ...]:
        """The chain of one feature."""
        return tuple(each for each in self.standings if each.gate.feature == feature)

    @property
    def features(self) -> tuple[str, ...]:
        """All that have a gate here."""
        return tuple(dict.fromkeys(each.gate.feature for each in self.standings))

    @property
    def closed_now(self) -> tuple[Standing, ...]:
        """Closed before the change."""
        return tuple(each for each in self.standings if each.before is GateVerdict.CLOSED)

    @property
    def opened(self) -> tuple[Standing, ...]:
        """Opened by the change, those among them that a part of it would first close."""
        return tuple(each for each in self.standings if each.opened)

    @property
    def shut(self) -> tuple[Standing, ...]:
        """Closed by the change."""
        return tuple(each for each in self.standings if each.shut)

    @property
    def maybe(self) -> tuple[Standing, ...]:
        """Of which nobody knows."""
        return tuple(each for each in self.standings if 0 < each.probability < 1)

    def rest(self, feature: str) -> tuple[Standing, ...]:
        """What stands closed before a feature once the change is made."""
        return tuple(each for each in self.of(feature) if each.after is GateVerdict.CLOSED)

    def behind(self, names: Iterable[str]) -> tuple[Standing, ...]:
        """What stands closed before the features of unblocked attempts in the end."""
        features = dict.fromkeys(each for name in names for each in self.unblocked[name])
        return tuple(each for feature in features for each in self.rest(feature))

    def only_measured(self, feature: str) -> bool:
        """Whether nothing but published measurements stands before it in the end."""
        return all(each.gate.layer is Layer.MEASURED for each in self.rest(feature))


def open_gates(target: Target, situation: Situation) -> Opening:
    """Hold the change against every known gate and every attempt."""
    known = tuple(_known(each, target, situation) for each in chains().gates)
    reported = tuple(_reported(gate, target, situation.facts) for gate in situation.gates)
    fresh = tuple(each for each in reported if not _is_known(each.gate, known))
    changes = expanded(target.changes, situation.facts)
    tried = {
        each.attempt.name: _features_of(each)
        for each in situation.judged
        if each.unblocked_by(changes)
    }
    asked = frozenset(feature for each in situation.judged for feature in _features_of(each))
    found = Opening((*known, *fresh), {}, asked)
    reached = {
        name: features
        for name, features in tried.items()
        if all(map(found.only_measured, features))
    }
    return replace(found, unblocked=reached)


def _features_of(each: Judged) -> frozenset[str]:
    """What an attempt was about: the features of its gates, else what its command names."""
    met = frozenset(met.gate.feature for met in each.chain)
    features = chains().features - {RUNNING}
    named = (name for name in features if f"-{name}" in each.attempt.command)
    return met or frozenset(named)


def _known(known: KnownGate, target: Target, situation: Situation) -> Standing:
    facts = situation.facts
    after = known.verdict(facts_after(target.changes, facts))
    needed = tuple(
        change
        for change in target.changes
        if known.verdict(facts_after(target.without(change), facts)) is GateVerdict.CLOSED
    )
    gate = observed(known, facts, situation.gates)
    return Standing(
        gate=gate,
        before=known.verdict(facts),
        after=after,
        opener=needed if after is GateVerdict.OPEN else (),
        touched=target.changes_component(known.gate.component),
        sources=known.sources,
    )


def facts_after(changes: tuple[Change, ...], facts: Facts) -> Facts:
    """The facts once the changes are made, with the torch that comes along."""
    return applied(expanded(changes, facts), facts)


def _reported(gate: Gate, target: Target, facts: Facts) -> Standing:
    """A gate that only the doctor knows: opened by the release it names, else nobody knows."""
    owner = _OWNERS.get(gate.layer, gate.component.partition(" ")[0])
    changes = expanded(target.changes, facts)
    change = next((each for each in changes if each.component == owner), None)
    after, opener = GateVerdict.CLOSED, tuple[Change, ...]()
    if change is not None:
        after = _of_release(gate, change)
        opener = (change,) if after is GateVerdict.OPEN else ()
    touched = change is not None
    return Standing(gate, GateVerdict.CLOSED, after, opener, touched, ("alula doctor",))


def _of_release(gate: Gate, change: Change) -> GateVerdict:
    named = _RELEASE.match(gate.opened_in)
    if named is None:
        return GateVerdict.UNKNOWN
    reached = Version(change.version.partition("+")[0]) >= Version(named[1])
    return GateVerdict.OPEN if reached else GateVerdict.CLOSED


def _is_known(gate: Gate, known: Iterable[Standing]) -> bool:
    """Whether a gate of the report stands among the known ones, perhaps under another feature."""
    return any(
        each.before is GateVerdict.CLOSED
        and _same_layer(each.gate.layer, gate.layer)
        and each.gate.feature in (gate.feature, RUNNING)
        and (gate.layer is Layer.TOOLKIT or _same_owner(each.gate, gate))
        for each in known
    )


def _same_owner(known: Gate, reported: Gate) -> bool:
    """As the known gates, which may not know the package, name it."""
    owner = reported.component.partition(" ")[0]
    return known.component == owner or known.component.startswith("the ")


def _same_layer(first: Layer, second: Layer) -> bool:
    metal = (Layer.HARDWARE, Layer.TOPOLOGY)
    return first is second or (first in metal and second in metal)
