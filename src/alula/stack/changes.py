"""The local changes of the environment in use, made again in the one that is built beside it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alula.errors import AlulaError, UsageError
from alula.machine.environment import canonical, environment_at
from alula.models.progress import Progress
from alula.stack import link
from alula.stack.lock import Lock
from alula.stack.patches import Reapplied, reapply
from alula.stack.patches_find import find
from alula.stack.patches_records import (
    STOPS,
    Judged,
    Snapshot,
    Standing,
    is_snapshot,
    read_snapshot,
)
from alula.stack.patches_target import Target
from alula.stack.places import Places
from alula.stack.records import Brought, Record, need_ready

_SHOWN = 3
_IN_IT = (Standing.APPLIED, Standing.KEEP)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person says about local changes."""

    snapshot: Path | None = None
    """One that was made before; by default a new one of the current environment."""
    dropped: frozenset[str] = frozenset()
    repositories: Mapping[str, Path] = field(default_factory=dict)
    """As in a Target."""
    wheels: Sequence[Path] = ()
    left_behind: bool = False
    """All of them."""


class ChangesWaitError(AlulaError):
    """A local change that somebody has to decide about; the environment waits."""


def snapshot_for(places: Places, name: str, wanted: Wanted, progress: Progress) -> Path | None:
    """The snapshot of the local changes that the environment `name` is to be given.

    None where there is nothing to take them from. Raises UsageError where the current environment
    is gone, and for a change to drop that there is not.
    """
    if wanted.left_behind and (wanted.snapshot or wanted.dropped):
        raise UsageError(
            "--without-changes stands with --drop or --snapshot",
            "it leaves all local changes behind",
            "give one of them",
        )
    if wanted.left_behind:
        return None
    folder = wanted.snapshot or _snapshot_of_current(places, name, progress)
    if folder is not None:
        check_dropped(read_snapshot(folder), wanted.dropped)
    elif wanted.dropped:
        raise _nothing_to_drop(next(iter(sorted(wanted.dropped))), 0)
    return folder


def _snapshot_of_current(places: Places, name: str, progress: Progress) -> Path | None:
    folder, source = places.changes(name), link.current(places)
    if source == name:  # it is gone and built again, and so is what was brought into it
        return folder if is_snapshot(folder) else None
    if source is None:
        return None
    try:
        environment = environment_at(need_ready(places, source).path)
    except UsageError as error:
        fix = f"{error.fix}; to go on without its local changes: --without-changes"
        raise UsageError(error.what, error.why, fix) from error
    shutil.rmtree(folder, ignore_errors=True)
    find(environment, folder, watch=progress)
    return folder


def check_dropped(snapshot: Snapshot, dropped: frozenset[str]) -> None:
    """UsageError where a change is to be dropped that is none."""
    ids = {change.id for change in snapshot.changes}
    if unknown := sorted(dropped - ids):
        raise _nothing_to_drop(unknown[0], len(ids))


def _nothing_to_drop(id_: str, number: int) -> UsageError:
    return UsageError(
        f"there is no change {id_!r} to drop",
        f"{number} changes were found, and none has that id",
        "take an id from the list that alula stack patches prints",
    )


def bring(
    places: Places, record: Record, folder: Path | None, wanted: Wanted, progress: Progress
) -> Record:
    """Make the changes of a snapshot again; the record `ready`, or `stopped` where one waits."""
    if folder is None:
        return record.model_copy(update={"state": "ready", "reason": ""})
    earlier = {each.id: each for each in record.changes if each.standing in _IN_IT}
    target = target_of_lock(record.lock, places, wanted)
    done = reapply(record.path, folder, target, progress)
    return record.model_copy(
        update={
            "state": "stopped" if done.stopped else "ready",
            "reason": _waits(done.stopped) if done.stopped else "",
            "changes": tuple(_brought(each, earlier) for each in _all_of(done)),
            "variables": dict(done.variables),
        }
    )


def target_of_lock(lock: Lock | None, places: Places, wanted: Wanted) -> Target:
    """What a lock says of the target, with every wheel at hand."""
    packages, missing = (lock.packages, lock.not_offered) if lock else ((), ())
    versions = {canonical(each.name): each.version for each in packages}
    offered = dict.fromkeys(missing, False) | dict.fromkeys(versions, True)
    wheels = (*wanted.wheels, places.wheels)
    return Target(None, versions, wanted.repositories, wheels, offered, wanted.dropped)


def _all_of(done: Reapplied) -> tuple[Judged, ...]:
    return (*done.done, *((done.stopped,) if done.stopped else ()), *done.left)


def _brought(judged: Judged, earlier: Mapping[str, Brought]) -> Brought:
    """What an earlier run made is found there by the next, and stays what it was."""
    if judged.change.id in earlier:
        return earlier[judged.change.id]
    return Brought(id=judged.change.id, standing=judged.standing, reason=judged.reason)


def _waits(stopped: Judged) -> str:
    return f"{stopped.standing}: {stopped.change.id}: {stopped.reason}"


def waiting(record: Record, folder: Path) -> ChangesWaitError:
    """What is said of an environment that a local change keeps from being ready."""
    stops = [each for each in record.changes if _stops(each)]
    more = [each.id for each in stops[1:]]
    others = f"; so do {', '.join(more[:_SHOWN])}" if more else ""
    others += f" and {len(more) - _SHOWN} more" if len(more) > _SHOWN else ""
    return ChangesWaitError(
        f"{record.name} is built, but a local change has to be decided first",
        f"{record.reason}{others}; all are saved in {folder}",
        f"leave it behind with --drop '{stops[0].id}', after making it by hand in {record.path} "
        "where it is wanted, or give what it lacks with --wheels or --upstream; then run the same "
        "command again",
    )


def _stops(each: Brought) -> bool:
    return each.standing in STOPS


def check_same_changes(record: Record, wanted: Wanted) -> None:
    """UsageError where what is asked of an environment is not what was done to it."""
    made = {each.id for each in record.changes if each.standing in _IN_IT}
    there = {each.id for each in record.changes}
    behind = {each.id for each in record.changes if each.standing == Standing.DROP}
    if record.state == "ready" and (late := sorted(wanted.dropped - behind)):
        what = f"{late[0]} is in it" if late[0] in there else f"no change has the id {late[0]}"
    elif late := sorted(wanted.dropped & made):
        what = f"{late[0]} is in it"
    elif wanted.left_behind and made:
        what = f"{sorted(made)[0]} is in it"
    else:
        return
    raise UsageError(
        f"{record.name} was built with other local changes",
        what,
        "build another from the same lock with --name, or remove it with alula stack prune",
    )


def told(changes: Sequence[Brought]) -> str:
    """How many became what, in words."""
    counts = Counter(each.standing for each in changes)
    return ", ".join(f"{number} {standing}" for standing, number in counts.items())
