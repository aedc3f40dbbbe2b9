"""What was done, in order. Lines are only ever added.

A move of the link is written down before it is done, so that none is ever missing; whether it was
done is told by what the next line found, or by the link itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alula.errors import MachineError
from alula.stack.places import Places

Action = Literal[
    "apply", "ready", "stopped", "broken", "probe", "adopt", "switch", "rollback", "prune"
]
_MOVES = ("switch", "rollback")


class Entry(BaseModel):
    """One thing that was done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    action: Action
    environment: str
    before: str | None = None
    """Of a move: where the link led."""
    note: str = ""


class Journal(NamedTuple):
    """All that can be read of it."""

    entries: tuple[Entry, ...]
    damaged: int
    """Lines that are none, as a full disk leaves them."""


def append(places: Places, entry: Entry) -> None:
    """Add a line and flush it to disk; MachineError where it does not fit."""
    line = entry.model_dump_json().encode() + b"\n"
    try:
        file = os.open(places.journal, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise _cannot_write(places, error.strerror or str(error)) from error
    try:
        size = os.fstat(file).st_size
        # What a full disk cut short must not swallow the line after it.
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        whole = b"\n" + line if torn else line
        if os.write(file, whole) != len(whole):
            raise _cannot_write(places, "the disk is full")
        os.fsync(file)
    except OSError as error:
        raise _cannot_write(places, error.strerror or str(error)) from error
    finally:
        os.close(file)


def _cannot_write(places: Places, why: str) -> MachineError:
    return MachineError(
        f"the journal {places.journal} cannot be written",
        why,
        "free some space, or look at its permissions; nothing was switched",
    )


def read(places: Places) -> Journal:
    """Everything that was written."""
    try:
        lines = places.journal.read_bytes().splitlines()
    except FileNotFoundError:
        return Journal((), 0)
    entries, damaged = [], 0
    for line in filter(None, lines):
        try:
            entries.append(Entry.model_validate_json(line))
        except ValidationError:
            damaged += 1
    return Journal(tuple(entries), damaged)


def before_current(entries: Iterable[Entry], current: str | None) -> str | None:
    """Where a rollback leads: what the latest switch that still stands came from."""
    moves = [entry for entry in entries if entry.action in _MOVES]
    found = [after.before for _, after in pairwise(moves)] + [current]
    came_from: list[str | None] = []
    for move, led_to in zip(moves, found, strict=False):
        if led_to != move.environment:
            continue  # it was ended between its line and its rename
        if move.action == "switch":
            came_from.append(move.before)
        elif came_from:
            came_from.pop()
    return came_from[-1] if came_from else None
