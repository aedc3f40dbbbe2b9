"""A diagnosis as a value: the cause of a run's failure, and what was found beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from alula.diagnosis.events import Event
from alula.diagnosis.facts import Facts
from alula.diagnosis.signatures import Ruling


class Certainty(StrEnum):
    """How sure a cause is. A phrase alone is never certain."""

    CERTAIN = "certain"
    LIKELY = "likely"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cause:
    """The root of a failure, and what would show that it is not."""

    ruling: Ruling
    certainty: Certainty
    event: Event | None
    """The line it was read from; None where the exit status alone speaks, or a measured figure."""
    because: tuple[str, ...]
    """The facts that were asked, and what they said."""
    sources: tuple[str, ...] = ()
    name: str = ""
    """The signature's."""


@dataclass(frozen=True)
class Note:
    """Something worth knowing that ended nothing."""

    text: str
    event: Event | None = None


@dataclass(frozen=True)
class Diagnosis:
    """One run's cause, the failures behind it, and remarks."""

    cause: Cause | None
    cascade: tuple[Event, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: Facts = field(default_factory=Facts)
    """Those that were given, and what the logs say of the run's settings."""
