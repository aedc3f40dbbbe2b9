"""Which features a set opens, and which stay closed, by the doctor's own chains of gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from alula.diagnosis.features import FEATURES, chain
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.software import Software
from alula.stack.lock import Closed
from alula.stack.picture import Picture


@dataclass(frozen=True)
class Feature:
    """The gates of one feature in a set, and whether they were open before."""

    name: str
    gates: tuple[Gate, ...]
    before: tuple[Gate, ...] = ()

    def closed(self) -> tuple[Gate, ...]:
        """Those that stand in the way."""
        return tuple(gate for gate in self.gates if gate.verdict is GateVerdict.CLOSED)

    def unknown(self) -> tuple[Gate, ...]:
        """Those of which only the machine itself can tell."""
        return tuple(gate for gate in self.gates if gate.verdict is GateVerdict.UNKNOWN)

    @property
    def was_closed(self) -> bool:
        """Whether the baseline had a closed gate."""
        return any(gate.verdict is GateVerdict.CLOSED for gate in self.before)

    @property
    def is_there(self) -> bool:
        """Whether the set has what the feature is of."""
        first = self.gates[0]
        return first.verdict is GateVerdict.OPEN or first.layer is not Layer.VERSION_CHECK


def features_of(
    machine: Machine, picture: Picture, baseline: Software | None, goals: Sequence[str]
) -> tuple[Feature, ...]:
    """Every feature whose package is in the set, and those that are asked for."""
    software = picture.software
    unread = {name for name, each in picture.chosen.items() if each.contents is None}
    found = (
        Feature(
            name,
            tuple(_as_far_as_read(gate, unread) for gate in chain(name, machine, software)),
            chain(name, machine, baseline) if baseline else (),
        )
        for name in dict.fromkeys((*goals, *FEATURES))
    )
    return tuple(each for each in found if each.is_there or each.name in goals)


def _as_far_as_read(gate: Gate, unread: Set[str]) -> Gate:
    """A gate in a package that nobody has looked into is neither open nor closed."""
    owner = gate.component.partition(" ")[0]
    if owner not in unread or gate.predicate.endswith("is installed"):
        return gate
    return replace(gate, verdict=GateVerdict.UNKNOWN, observed=f"{owner} was not looked into")


def opened(features: Sequence[Feature]) -> Iterator[str]:
    """Features without a closed gate, in words."""
    for each in features:
        if not each.closed():
            unknown = each.unknown()
            rest = f"; to be probed: {unknown[0].predicate}" if unknown else ""
            yield f"{each.name}{rest}"


def still_closed(features: Sequence[Feature]) -> Iterator[Closed]:
    """Each closed gate, with what opens it."""
    for each in features:
        for gate in each.closed():
            yield Closed(
                gate=f"{each.name}: {gate.layer} of {gate.component}",
                why=f"{gate.predicate}: {gate.observed} ({gate.evidence})",
                opens_with=gate.opened_in or "nothing that is known",
            )
