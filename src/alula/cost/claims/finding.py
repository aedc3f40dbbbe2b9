"""One statement about claims, with its arithmetic and its reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["compatible", "impossible", "excluded", "differs", "implied"]
"""Impossible is a claim by itself, excluded are claims by each other under a reading."""

EXTRA_MS = (0.0, 5.0, 10.0)
"""What drafting and the host may take beside a verification, where nobody said."""


@dataclass(frozen=True)
class Finding:
    """One statement about the claims."""

    name: str
    reading: str
    """What is taken to hold."""
    arithmetic: str
    outcome: Outcome
    says: str
    figures: dict[str, float] = field(default_factory=dict)
