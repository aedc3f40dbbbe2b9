"""A new environment from a lock, beside all others.

Nothing is written into it before every wheel has been fetched, hashed and looked through. It is
built at its final place, since its scripts name it, and becomes usable by one change of its record.
A run that was ended anywhere leaves the record at `building`, and the next one starts anew with
what was downloaded.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from alula.errors import AlulaError, PackageError, UsageError
from alula.models.home import need_space
from alula.models.progress import Progress
from alula.stack import changes, download, uv
from alula.stack.changes import Wanted
from alula.stack.contents import Contents, announced_size, look_through
from alula.stack.holding import building, changing
from alula.stack.installed import check_installed, size_of
from alula.stack.journal import Action, Entry, append
from alula.stack.layout import check_owners
from alula.stack.lock import Lock
from alula.stack.places import Places, checked
from alula.stack.platforms import accepted_tags, check_platform, python_version
from alula.stack.records import Record, read_record, write_record
from alula.stack.variables import make_caches, toolkit_home, write_activation


class Applied(NamedTuple):
    """What building came to."""

    record: Record
    built: bool
    """False where the environment was whole already."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """One environment under way."""

    places: Places
    record: Record
    lock: Lock
    python: Path | None
    progress: Progress
    held: int

    @property
    def folder(self) -> Path:
        return self.record.path


def name_of(lock: Lock) -> str:
    """The name of the environment of a lock: the same lock is always the same environment."""
    digest = hashlib.sha256(lock.to_bytes()).hexdigest()[:8]
    return f"{lock.created:%Y%m%d}-{digest}"


def apply(
    places: Places,
    lock: Lock,
    progress: Progress,
    name: str | None = None,
    python: Path | None = None,
    wanted: Wanted | None = None,
) -> Applied:
    """Build the environment of a lock, or find that it is there, with the local changes in it.

    Raises PackageError where a wheel or the lock is refused, MachineError where the network, the
    disk or an interpreter is missing, UsageError where the name is taken, and ChangesWaitError
    where a local change waits for a decision.
    """
    name, wanted = checked(name or name_of(lock)), wanted or Wanted()
    version = python_version(lock)
    check_platform(lock)
    _check_once(lock)
    with building(places, name, progress) as held:
        known = read_record(places, name)
        whole = known is not None and _is_whole(known, lock)
        if known is not None and whole:
            changes.check_same_changes(known, wanted)
        if known is not None and whole and known.state == "ready":
            return Applied(known, False, _notes(known))
        folder = changes.snapshot_for(places, name, wanted, progress)
        if known is None or not whole:
            begun = _begun(places, lock, name)
            _note(places, begun, "apply", f"packages: {len(lock.packages)}")
            known = _build_or_tell(_Work(places, begun, lock, python, progress, held), version)
        ready = changes.bring(places, known, folder, wanted, progress)
        if folder is not None and ready.state == "stopped":
            _note(places, ready, "stopped", ready.reason)
            raise changes.waiting(ready, folder)
        _note(places, ready, "ready", changes.told(ready.changes))
        return Applied(ready, True, _notes(ready))


def _is_whole(known: Record, lock: Lock) -> bool:
    """Whether what was built of this lock is there; UsageError where it is of another one."""
    if known.state not in ("ready", "stopped"):
        return False
    _check_same(known, lock)
    return (known.path / "bin/python").exists()


def _begun(places: Places, lock: Lock, name: str) -> Record:
    return Record(
        name=name,
        path=places.environment(name),
        created=datetime.now(UTC),
        state="building",
        python=lock.python,
        lock=lock,
    )


def _build_or_tell(work: _Work, version: tuple[int, int]) -> Record:
    """Build, and write down how that ended."""
    try:
        built = _build(work, version)
    except (AlulaError, OSError) as error:
        _clear(work)
        why = str(error)
        broken = work.record.model_copy(update={"state": "broken", "reason": why})
        _note(work.places, broken, "broken", why)
        raise
    with changing(work.places):
        write_record(work.places, built)
    return built


def _build(work: _Work, version: tuple[int, int]) -> Record:
    _clear(work)
    python = _interpreter(work)
    download.fetch(work.places, work.lock.packages, work.progress)
    wheels = _look_through(work, version)
    check_owners(wheels, work.lock.python)
    uv.make_environment(work.folder, python, work.places.scratch(work.record.name), work.held)
    _install(work, wheels)
    with work.progress("checking what was installed", sum(each.size for each in wheels)) as task:
        check_installed(work.folder, wheels, work.lock.python, task.advance)
    make_caches(work.places, work.record)
    write_activation(work.places, work.record)
    _clear_scratch(work)
    size = size_of(work.folder)
    return work.record.model_copy(
        update={
            "state": "stopped",
            "reason": "its local changes are not made yet; the same alula stack apply goes on",
            "size_bytes": size,
        }
    )


def _look_through(work: _Work, version: tuple[int, int]) -> list[Contents]:
    """Every wheel's bytes against the lock, and its entries against its RECORD."""
    files = [work.places.wheel(each.sha256, each.filename) for each in work.lock.packages]
    needed = sum(announced_size(file) for file in files)
    need_space(work.places.root, needed, "install the wheels")
    tags = accepted_tags(version)
    found = []
    total = sum(file.stat().st_size for file in files)
    with work.progress("looking through wheels", total) as task:
        for file, wheel in zip(files, work.lock.packages, strict=True):
            download.check_hash(file, wheel)
            found.append(look_through(file, wheel, tags, task.advance))
    return found


def _install(work: _Work, wheels: Sequence[Contents]) -> None:
    scratch = work.places.scratch(work.record.name)
    total = sum(each.size for each in wheels)
    with work.progress("installing wheels", total) as task:
        for each in wheels:
            file = work.places.wheel(each.wheel.sha256, each.wheel.filename)
            uv.install(work.folder, each.wheel, file, scratch, work.held)
            task.advance(each.size)


def _interpreter(work: _Work) -> Path:
    if work.python is None:
        return uv.find_python(work.lock.python)
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        said = subprocess.run(
            [str(work.python), "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said != work.lock.python:
        raise UsageError(
            f"{work.python} is not the Python of the lock",
            f"the lock is for {work.lock.python}, asked for its version it said {said!r}",
            f"name a Python {work.lock.python}, or plan again for another",
        )
    return work.python


def _check_once(lock: Lock) -> None:
    names = [canonicalize_name(wheel.name) for wheel in lock.packages]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PackageError(
            f"the lock holds {twice} twice",
            "an environment has one of each package",
            "plan again; a lock is not written by hand",
        )


def _check_same(known: Record, lock: Lock) -> None:
    if known.lock != lock:
        raise UsageError(
            f"the name {known.name} is taken",
            "by an adopted environment" if known.baseline else "by the environment of another lock",
            "choose another with --name, or leave it out",
        )


def _note(places: Places, record: Record, action: Action, note: str = "") -> None:
    with changing(places):
        write_record(places, record)
        append(places, Entry(action=action, environment=record.name, note=note))


def _clear(work: _Work) -> None:
    """Remove what an ended run has left; links in it are not followed."""
    _clear_scratch(work)
    if work.folder.exists():
        shutil.rmtree(work.folder)


def _clear_scratch(work: _Work) -> None:
    shutil.rmtree(work.places.scratch(work.record.name), ignore_errors=True)


def _notes(record: Record) -> tuple[str, ...]:
    """What its owner still has to do."""
    assert record.lock is not None
    toolkit = record.lock.toolkit
    if toolkit.kind == "none" or toolkit_home(record) is not None:
        return ()
    command = f": {toolkit.command}" if toolkit.command else ""
    return (f"the toolkit {toolkit.version or ''} is not there yet ({toolkit.kind}){command}",)
