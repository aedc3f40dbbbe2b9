"""What is known of each environment: where it lies, what it was built from, whether it is whole."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from alula.errors import MachineError, UsageError
from alula.models.home import whole_file
from alula.stack.holding import changing
from alula.stack.journal import Entry, append
from alula.stack.lock import Lock
from alula.stack.places import Places, known


class Brought(BaseModel):
    """A local change of the environment before, and what became of it in this one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    standing: str
    reason: str


class Probed(BaseModel):
    """What came of the latest probe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: datetime
    result: Literal["passed", "failed", "not run"]
    verdict: str


class Record(BaseModel):
    """One environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str
    path: Path
    created: datetime
    state: Literal["building", "ready", "stopped", "broken"]
    """`stopped`: it is built, and a local change waits for a decision."""
    baseline: bool = False
    """Adopted: it was there before, lies elsewhere, and is never changed or removed."""
    python: str = ""
    lock: Lock | None = None
    """What it was built from; None where it was adopted."""
    size_bytes: int = 0
    reason: str = ""
    """Why it is broken, or what it waits for."""
    changes: tuple[Brought, ...] = ()
    variables: dict[str, str] = {}
    """Those that somebody had set for the environment before, handed on to what runs in it."""
    probed: Probed | None = None


def write_record(places: Places, record: Record) -> None:
    """Replace what was known of an environment, whole or not at all."""
    places.make()
    text = record.model_dump_json(indent=2) + "\n"
    target = places.record(record.name)
    with whole_file(target, len(text), f"keep the record of {record.name}") as file:
        if record.variables:  # they may hold keys
            os.fchmod(file.fileno(), 0o600)
        file.write(text.encode())


def read_record(places: Places, name: str) -> Record | None:
    """What is known of an environment; None where there is none of this name."""
    path = places.record(name)
    try:
        return Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise MachineError(
            f"the record of {name} cannot be read",
            f"{path}: {type(error).__name__}",
            "restore it, or move it and the environment's folder away",
        ) from error


def need_record(places: Places, name: str) -> Record:
    """As `read_record`; UsageError where there is none."""
    record = read_record(places, name)
    if record is None:
        raise UsageError(
            f"there is no environment {name!r}",
            f"known: {known(path.stem for path in places.records())}",
            "see alula stack list",
        )
    return record


def need_ready(places: Places, name: str) -> Record:
    """The record of an environment that can be used; UsageError where it is not whole."""
    record = need_record(places, name)
    if record.state != "ready":
        raise UsageError(
            f"the environment {name} is not ready",
            record.reason or "building it has not ended",
            "build it again with the same alula stack apply"
            if record.state != "stopped"
            else f"decide it: alula stack patches current --target {name}",
        )
    if not (record.path / "bin/python").exists():
        raise UsageError(
            f"the environment {name} is gone",
            f"{record.path} holds no bin/python",
            "build it again with the same alula stack apply"
            if not record.baseline
            else "restore it, or adopt where it lies now",
        )
    return record


def note_probe(places: Places, name: str, probed: Probed) -> None:
    """Write down what came of a probe; nothing where the environment was removed meanwhile."""
    with changing(places):
        if (record := read_record(places, name)) is not None:
            write_record(places, record.model_copy(update={"probed": probed}))
            append(places, Entry(action="probe", environment=name, note=probed.verdict))


def all_records(places: Places) -> list[Record]:
    """Every environment, the oldest first."""
    found = (read_record(places, path.stem) for path in places.records())
    return sorted((each for each in found if each), key=lambda each: (each.created, each.name))
