"""An environment that was there before, recorded as the baseline where it lies."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from alula.errors import UsageError
from alula.machine.environment import environment_at
from alula.machine.source import exists
from alula.stack import link
from alula.stack.holding import changing
from alula.stack.journal import Entry, append
from alula.stack.places import Places, checked
from alula.stack.records import Record, all_records, read_record, write_record


class Adopted(NamedTuple):
    """An environment, and whether it is the one in use now."""

    record: Record
    new: bool
    packages: int
    current: bool


def adopt(places: Places, path: Path, name: str | None = None) -> Adopted:
    """Record an environment; nothing in it is changed, then or later.

    Where no environment is in use it becomes the one, so that a rollback leads to it. Raises
    UsageError where there is no environment, or where the name is another's.
    """
    path = path.expanduser().resolve()
    if path.is_relative_to(places.root.resolve()):
        raise UsageError(
            f"{path} is alula's own",
            "it lies where alula builds environments",
            "see alula stack list; switch to it instead",
        )
    found = environment_at(path)
    if not exists(path / "bin/python"):
        raise UsageError(
            f"{path} cannot be adopted",
            "there is no bin/python in it to run anything with",
            "name the folder of a virtual environment or a conda prefix",
        )
    record = Record(
        name=checked(name or path.name.lstrip(".") or "baseline"),
        path=path,
        created=datetime.now(UTC),
        state="ready",
        baseline=True,
        python=found.python,
    )
    with changing(places):
        known = _known(places, record, name)
        if known is None:
            write_record(places, record)
            append(places, Entry(action="adopt", environment=record.name, note=str(path)))
    if link.current(places) is None:
        link.switch(places, (known or record).name)
    is_current = link.current(places) == (known or record).name
    return Adopted(known or record, known is None, len(found.distributions), is_current)


def _known(places: Places, record: Record, name: str | None) -> Record | None:
    """The record of this folder; UsageError where the name is taken by another."""
    for each in all_records(places):
        if each.path == record.path and name in (None, each.name):
            return each
        if each.path == record.path:
            raise UsageError(
                f"{record.path} is known already",
                f"it is the environment {each.name}",
                f"use that name: alula stack switch {each.name}",
            )
    if (taken := read_record(places, record.name)) is not None:
        raise UsageError(
            f"the name {record.name} is taken",
            f"it is the environment at {taken.path}",
            "choose another with --name",
        )
    return None
