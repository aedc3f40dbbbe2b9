"""Old environments removed: never one in use, never the way back, never one that was adopted."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from alula.errors import UsageError
from alula.models.progress import Progress
from alula.stack import link
from alula.stack.holding import changing, removing
from alula.stack.journal import Entry, append
from alula.stack.places import Places
from alula.stack.records import Record, all_records
from alula.stack.usage import processes_in, started_as

_TRASH = ".removed-"


class Pruned(NamedTuple):
    """What was removed, and why the others were not."""

    removed: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    freed_bytes: int
    hidden: int
    """Processes that could not be looked into."""


def prune(places: Places, keep: int, progress: Progress) -> Pruned:
    """Remove all environments but the `keep` newest and those that must stay.

    Wheels that no environment was built from go with them. UsageError where `keep` is negative.
    """
    if keep < 0:
        raise UsageError(
            f"--keep {keep} is negative", "it is a number of environments", "give 0 or more"
        )
    places.make()
    _take_out_trash(places)
    records = all_records(places)
    usage = processes_in({each.name: each.path for each in records if not each.baseline})
    reasons = _reasons(places, records, keep)
    through_link = _running(started_as(places.current), "perhaps in use, through the link, by")
    removed, kept, freed = [], [], 0
    with progress("removing environments", len(records)) as task:
        for record in records:
            running = _running(usage.processes.get(record.name, ()), "in use by")
            reason = reasons.get(record.name) or running or through_link
            if reason := reason or _remove(places, record):
                kept.append((record.name, reason))
            else:
                removed.append(record.name)
                freed += record.size_bytes
            task.advance(1)
    with changing(places):  # who builds writes a record first, then fetches
        freed += _drop_wheels(places)
    return Pruned(tuple(removed), tuple(kept), freed, usage.hidden)


def _reasons(places: Places, records: Iterable[Record], keep: int) -> dict[str, str]:
    """Why an environment stays, whoever uses it."""
    built = [record for record in records if not record.baseline and record.state == "ready"]
    newest = built[max(0, len(built) - keep) :]
    reasons = {record.name: f"one of the {keep} newest" for record in newest}
    reasons |= {record.name: "adopted" for record in records if record.baseline}
    if (before := link.previous(places)) is not None:
        reasons[before] = "a rollback leads to it"
    if (now := link.current(places)) is not None:
        reasons[now] = "current"
    return reasons


def _running(processes: tuple[int, ...], how: str) -> str:
    return f"{how} process {', '.join(map(str, processes))}" if processes else ""


def _remove(places: Places, record: Record) -> str:
    """Remove one environment, or say why not."""
    with removing(places, record.name) as free:
        if not free:
            return "in use: something was started in it, or builds it"
        trash = places.environments / f"{_TRASH}{record.name}-{secrets.token_hex(6)}"
        with changing(places):
            # Since it was looked at, somebody may have switched to it.
            if record.name in (link.current(places), link.previous(places)):
                return "current, or a rollback leads to it"
            append(places, Entry(action="prune", environment=record.name))
            if record.path.exists():
                record.path.rename(trash)
            places.record(record.name).unlink()
        _delete(trash)
        _delete(places.scratch(record.name))
        _delete(places.compiled(record.name))
        _delete(places.changes(record.name))
        places.lock(record.name).unlink()
    return ""


def _drop_wheels(places: Places) -> int:
    """Remove the wheels that no environment was built from; how many bytes that frees."""
    needed = {
        wheel.sha256
        for record in all_records(places)
        for wheel in (record.lock.packages if record.lock else ())
    }
    freed = 0
    for folder in places.wheels.glob("*"):
        if folder.name not in needed:
            freed += sum(file.stat().st_size for file in folder.iterdir())
            _delete(folder)
    return freed


def _take_out_trash(places: Places) -> None:
    """What a run that was ended while it removed has left."""
    for left in places.environments.glob(f"{_TRASH}*"):
        _delete(left)


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
