"""Who may change what at the same time: locks that end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alula.errors import MachineError
from alula.models.progress import Progress
from alula.stack.places import Places

_ORPHAN_SECONDS = 600.0
"""Longer than a killed builder's uv takes to unpack one wheel; a builder that goes on makes what
the waiting one wants."""
_GLANCE_SECONDS = 2.0
"""Longer than anybody holds a lock only to see whether it is free."""
_POLL_SECONDS = 0.05


@contextmanager
def changing(places: Places) -> Iterator[None]:
    """While the link, a record and the journal change together; others wait, a moment at most."""
    places.make()
    file = _opened(places.guard)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def building(places: Places, name: str, progress: Progress) -> Iterator[int]:
    """The only one to build an environment; the lock's descriptor is for children to inherit.

    A child that outlives a killed builder keeps the lock, so that no second builder writes beside
    it; it is waited for. MachineError where somebody else goes on.
    """
    places.make()
    file = _locked(places.lock(name), fcntl.LOCK_EX)
    if file is None:
        file = _wait(places, name, progress)
    try:
        yield file
    finally:
        os.close(file)


def _wait(places: Places, name: str, progress: Progress) -> int:
    polls = int(_ORPHAN_SECONDS / _POLL_SECONDS)
    with progress(f"waiting for another process to leave {name}", polls) as task:
        for _ in range(polls):
            time.sleep(_POLL_SECONDS)
            task.advance(1)
            if (file := _locked(places.lock(name), fcntl.LOCK_EX)) is not None:
                return file
    raise MachineError(
        f"the environment {name} is in use",
        "another process builds it or runs in it",
        "wait for it, or give the new one another --name",
    )


@contextmanager
def removing(places: Places, name: str) -> Iterator[bool]:
    """Whether nobody builds an environment or runs in it; nobody can begin within the block."""
    file = _locked(places.lock(name), fcntl.LOCK_EX)
    try:
        yield file is not None
    finally:
        if file is not None:
            os.close(file)


def share(places: Places, name: str) -> int:
    """Run in an environment: a descriptor that keeps it from being removed while it is open.

    MachineError where it is being built or removed.
    """
    until = time.monotonic() + _GLANCE_SECONDS
    while (file := _locked(places.lock(name), fcntl.LOCK_SH)) is None:
        if time.monotonic() > until:
            raise MachineError(
                f"the environment {name} cannot be used now",
                "another process builds or removes it",
                "wait for it to end",
            )
        time.sleep(_POLL_SECONDS)
    return file


def is_held(places: Places, name: str) -> bool:
    """Whether somebody builds an environment or was started in it by `alula stack run`."""
    if not places.lock(name).exists():
        return False
    with removing(places, name) as free:
        return not free


def _locked(path: Path, kind: int) -> int | None:
    """A locked descriptor of the file that lies there now; None where somebody is in the way."""
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            if _is_there(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            return None
        os.close(file)  # removed between opening and locking: the next one counts


def _opened(path: Path) -> int:
    """A lock's file, made where it is missing; to be read is enough where it cannot be written.

    So that a service user can run in, and list, what another user keeps.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        refused = error
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written",
            refused.strerror or str(refused),
            "look at its permissions, or set ALULA_HOME to a folder you may write to",
        ) from error


def _is_there(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
