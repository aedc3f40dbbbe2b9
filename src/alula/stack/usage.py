"""Which processes run in an environment, as the system shows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROCESSES = Path("/proc")


class Usage(NamedTuple):
    """Processes by environment, and how many could not be looked into."""

    processes: Mapping[str, tuple[int, ...]]
    hidden: int


def processes_in(folders: Mapping[str, Path], processes: Path = _PROCESSES) -> Usage:
    """The processes that have a folder as program, library, directory, argument or variable.

    An environment's Python is a link to another place, so that the program alone tells nothing.
    """
    wanted = {
        name: {os.fsencode(folder), os.fsencode(folder.resolve())}
        for name, folder in folders.items()
    }
    found: dict[str, list[int]] = {name: [] for name in folders}
    hidden = 0
    for process in processes.glob("[0-9]*"):
        seen, whole = _seen(process)
        hidden += not whole
        for name, spellings in wanted.items():
            if any(_holds(seen, folder) for folder in spellings):
                found[name].append(int(process.name))
    return Usage({name: tuple(sorted(each)) for name, each in found.items()}, hidden)


def started_as(link: Path, processes: Path = _PROCESSES) -> tuple[int, ...]:
    """The processes whose command names a link: which environment they run in cannot be told."""
    found = []
    for process in processes.glob("[0-9]*"):
        with suppress(OSError):
            if _holds((process / "cmdline").read_bytes(), os.fsencode(link)):
                found.append(int(process.name))
    return tuple(sorted(found))


def _seen(process: Path) -> tuple[bytes, bool]:
    """All that names a place, and whether nothing of it was refused to us."""
    parts, whole = [], True
    for name, read in _SOURCES.items():
        try:
            parts.append(read(process / name))
        except PermissionError:
            whole = False
        except OSError:
            continue  # it has ended meanwhile, or is a thread of the system
    return b"\0".join([*parts, b""]), whole


def _leads_to(link: Path) -> bytes:
    return os.fsencode(link.readlink())


_SOURCES: Mapping[str, Callable[[Path], bytes]] = {
    **dict.fromkeys(("cmdline", "environ", "maps"), Path.read_bytes),
    **dict.fromkeys(("exe", "cwd", "root"), _leads_to),
}


def _holds(seen: bytes, folder: bytes) -> bool:
    """Whether a folder, or something in it, is named; not one whose name only begins alike."""
    start = seen.find(folder)
    while start >= 0:
        end = start + len(folder)
        if seen[end : end + 1] in (b"/", b"\0", b"\n", b":", b" ", b"'", b'"'):
            return True
        start = seen.find(folder, end)
    return False
