"""What an answer says, each statement with the evidence it stands on."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import NamedTuple

CLAIMS = "alula estimate --check"
"""Where what follows from claims comes from."""


class Evidence(NamedTuple):
    """A fact and where a person can look for it."""

    what: str
    source: str


class Row(NamedTuple):
    """Cells of a table, or one sentence, and the keys of its evidence."""

    cells: tuple[str, ...]
    evidence: tuple[str, ...]


def counted(things: Sized, name: str) -> str:
    """1 gate, 2 gates."""
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


@dataclass(frozen=True)
class Section:
    """A titled table; where it has no headers, its rows are sentences."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass
class Ledger:
    """Collects evidence; equal facts have one key."""

    held: dict[Evidence, str] = field(default_factory=dict)

    def cite(self, what: str, source: str) -> str:
        """The key of a fact, e1, e2, …"""
        return self.held.setdefault(Evidence(what, source), f"e{len(self.held) + 1}")

    def by_key(self) -> dict[str, Evidence]:
        """Everything that was cited."""
        return {key: fact for fact, key in self.held.items()}
