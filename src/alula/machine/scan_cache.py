"""Lists found in source files that have not changed since, so that a second look is quick.

The key is path, size and time of change: a list edited in place is read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alula.machine.allow_lists import AllowList
from alula.machine.records import from_json
from alula.machine.source import exists

FORMAT = 2
_LARGEST = 64 << 20


class ScanCache:
    """What was found in which file; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _load(path)
        self._used: dict[str, Any] = {}

    def lists(self, file: Path, read: Callable[[], list[AllowList]]) -> list[AllowList]:
        """The lists of a file, from before where it is the same file."""
        try:
            status = file.stat()
        except OSError:
            return []
        stamp = [status.st_size, status.st_mtime_ns]
        known = self._known.get(str(file))
        found = _restored(known[2]) if known and known[:2] == stamp else None
        if found is None:
            found = read()
        self._used[str(file)] = [*stamp, [asdict(each) for each in found]]
        return found

    def save(self) -> None:
        """Keep what was found; a cache that cannot be written is done without."""
        if self._path is None or self._used.items() <= self._known.items():
            return
        files = {name: entry for name, entry in self._known.items() if exists(Path(name))}
        partial = self._path.with_suffix(f".{os.getpid()}")
        try:
            text = json.dumps({"format": FORMAT, "files": {**files, **self._used}})
            partial.write_text(text, encoding="utf-8")
            partial.replace(self._path)
        except OSError:
            partial.unlink(missing_ok=True)


def _load(path: Path | None) -> dict[str, Any]:
    """What an earlier run kept; nothing where it is damaged."""
    try:
        if path is None or path.stat().st_size > _LARGEST:
            return {}
        saved = json.loads(path.read_text(encoding="utf-8"))
        known = saved["files"] if saved["format"] == FORMAT else {}
        return {str(name): entry for name, entry in known.items() if len(entry) == 3}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _restored(entries: object) -> list[AllowList] | None:
    if not isinstance(entries, list):
        return None
    try:
        return [from_json(AllowList, entry, "list") for entry in entries]
    except (ValueError, TypeError):
        return None
