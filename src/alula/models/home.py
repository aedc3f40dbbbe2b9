"""The cache folder, and files that appear in it whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from alula.errors import MachineError

_PARTIAL = ".partial"
_YOUNG_SECONDS = 60.0


def cache_home() -> Path:
    """`ALULA_HOME`, else `alula` under `XDG_CACHE_HOME`, else `~/.cache/alula`."""
    if own := os.environ.get("ALULA_HOME"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "alula"


def cache_folder(name: str) -> Path:
    """The folder `name` of the cache, made where it is missing, leftovers of dead runs removed.

    Raises MachineError where it cannot be written.
    """
    folder = cache_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
        _sweep(folder)
    except OSError as error:
        raise MachineError(
            f"the cache folder {folder} cannot be written",
            error.strerror or str(error),
            "set ALULA_HOME to a folder you may write to",
        ) from error
    return folder


def need_space(folder: Path, size: int, purpose: str) -> None:
    """Raise MachineError unless the disk of `folder` has room for `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise _disk_full(folder, size, purpose, f"{free / 1e6:.0f} MB are free")


@contextlib.contextmanager
def whole_file(target: Path, size: int, purpose: str) -> Iterator[BinaryIO]:
    """A file to write that becomes `target`, flushed to disk, when the block ends well.

    Two processes may write the same target: each has its own partial file, the last rename
    stands. Raises MachineError where it cannot be written; `size`, in bytes, is what is needed.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}{_PARTIAL}")
    try:
        with partial.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(target.parent, size, purpose, str(error.strerror)) from error
        raise MachineError(
            f"{target} cannot be written",
            error.strerror or str(error),
            "set ALULA_HOME to a folder you may write to",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a disk that takes nothing gives nothing back either
            partial.unlink()


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder inside `parent` that is gone when the block ends."""
    scratch = parent / f".{secrets.token_hex(6)}{_PARTIAL}"
    scratch.mkdir()
    lock = os.open(scratch, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove partial files whose writer is gone: a live writer holds the lock."""
    for partial in folder.glob(f".*{_PARTIAL}"):
        with contextlib.suppress(OSError):
            # A writer that has only just created its file may not have locked it yet.
            if time.time() - partial.stat().st_mtime < _YOUNG_SECONDS:
                continue
            handle = os.open(partial, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
            finally:
                os.close(handle)


def _disk_full(folder: Path, size: int, purpose: str, why: str) -> MachineError:
    return MachineError(
        f"no room on the disk of {folder} to {purpose}",
        f"{size / 1e6:.0f} MB are needed, {why}",
        "free some space, or set ALULA_HOME to a folder on a larger disk",
    )
