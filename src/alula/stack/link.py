"""The link `current`: a switch is one rename, and a rollback is the way back."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from alula.errors import MachineError, UsageError
from alula.stack import journal
from alula.stack.holding import changing
from alula.stack.journal import Action, Entry
from alula.stack.places import Places
from alula.stack.records import Probed, Record, all_records, need_ready

_PARTIAL = ".current."


class Move(NamedTuple):
    """Where the link led, and where it leads."""

    before: str | None
    after: str
    probed: Probed | None = None
    """What came of the latest probe of where it leads."""

    @property
    def changed(self) -> bool:
        """Whether it leads elsewhere now."""
        return self.before != self.after


def current(places: Places) -> str | None:
    """The environment in use; None before the first. MachineError where no record knows it."""
    try:
        target = places.current.readlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a file or a folder" if error.errno == errno.EINVAL else str(error)
        raise _not_ours(places, why) from error
    if target.parent == Path(places.environments.name):
        return target.name
    for record in all_records(places):
        if record.path == target:
            return record.name
    raise _not_ours(places, f"it leads to {target}, which no record knows")


def switch(places: Places, name: str) -> Move:
    """Make an environment the one in use; processes that run go on in their own.

    Raises UsageError where it is not ready.
    """
    return _move(places, "switch", lambda _: name)


def rollback(places: Places) -> Move:
    """Go back to where the latest switch came from; nothing is read from any network.

    Raises UsageError where there is nothing before.
    """
    return _move(places, "rollback", lambda now: _before(places, now))


def previous(places: Places) -> str | None:
    """Where a rollback would lead."""
    return journal.before_current(journal.read(places).entries, current(places))


def _before(places: Places, now: str | None) -> str:
    before = journal.before_current(journal.read(places).entries, now)
    if before is None:
        raise UsageError(
            "there is nothing to go back to",
            "no switch away from another environment stands in the journal",
            "see alula stack list, and name one: alula stack switch NAME",
        )
    return before


def _move(places: Places, action: Action, choose: Callable[[str | None], str]) -> Move:
    with changing(places):
        before = current(places)
        record = need_ready(places, choose(before))
        move = Move(before, record.name, record.probed)
        if move.changed:
            journal.append(places, Entry(action=action, environment=record.name, before=before))
            _point(places, _target(places, record))
    return move


def _target(places: Places, record: Record) -> Path:
    """Relative where it was built here, so that the whole store can be read from elsewhere."""
    if record.path == places.environment(record.name):
        return record.path.relative_to(places.root)
    return record.path


def _point(places: Places, target: Path) -> None:
    for left in places.root.glob(f"{_PARTIAL}*"):  # of one who was ended before the rename
        with suppress(FileNotFoundError):
            left.unlink()
    partial = places.root / f"{_PARTIAL}{secrets.token_hex(6)}"
    partial.symlink_to(target, target_is_directory=True)
    partial.replace(places.current)
    folder = os.open(places.root, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _not_ours(places: Places, why: str) -> MachineError:
    return MachineError(
        f"{places.current} is not a link of alula's",
        why,
        "move it away, then alula stack switch NAME",
    )
