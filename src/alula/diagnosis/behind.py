"""The gates of the feature that a cause belongs to: which one meets after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from alula.diagnosis.cause import Cause
from alula.diagnosis.chains import KnownGate, chains, met, observed
from alula.diagnosis.facts import Facts
from alula.machine.gate import Gate


@dataclass(frozen=True)
class Met:
    """A gate, and when one meets it."""

    known: KnownGate
    gate: Gate
    when: str
    is_cause: bool


def gates_met(
    cause: Cause | None, feature: str, facts: Facts, reported: Iterable[Gate]
) -> tuple[Met, ...]:
    """The gates of a feature that are closed or will be, the cause's own among them.

    `reported` are the gates that the doctor found; they know files and lines.
    """
    reported = tuple(reported)
    return tuple(
        Met(known, observed(known, facts, reported), when, _is_cause(known, cause))
        for known, when in met(chains().of(feature), facts)
    )


def behind(cause: Cause, facts: Facts, reported: Iterable[Gate]) -> tuple[Met, ...]:
    """The gates behind a cause."""
    found = gates_met(cause, cause.ruling.feature, facts, reported)
    return tuple(gate for gate in found if not gate.is_cause)


def _is_cause(known: KnownGate, cause: Cause | None) -> bool:
    if cause is None:
        return False
    return (known.gate.layer, known.gate.component) == (cause.ruling.layer, cause.ruling.owner)
