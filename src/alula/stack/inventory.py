"""What environments there are, and who is in them."""

from __future__ import annotations

from typing import NamedTuple

from alula.stack import link
from alula.stack.holding import is_held
from alula.stack.places import Places
from alula.stack.records import Record, all_records
from alula.stack.usage import processes_in


class Known(NamedTuple):
    """One environment."""

    record: Record
    held: bool
    """Somebody builds it, or was started in it by `alula stack run`."""
    processes: tuple[int, ...]


class Inventory(NamedTuple):
    """All of them, the oldest first."""

    current: str | None
    previous: str | None
    """Where a rollback leads."""
    environments: tuple[Known, ...]


def inventory(places: Places) -> Inventory:
    """Everything that is recorded."""
    records = all_records(places)
    usage = processes_in({record.name: record.path for record in records})
    known = (
        Known(record, is_held(places, record.name), usage.processes[record.name])
        for record in records
    )
    return Inventory(link.current(places), link.previous(places), tuple(known))
