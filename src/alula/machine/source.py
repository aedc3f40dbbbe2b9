"""Bytes to be read at any place, of which none is believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

LARGEST_READ = 256 << 20
"""Bytes taken at once at most: a file that asks for more is not one a linker wrote."""


_ALWAYS, _LARGEST_SUM = 64 << 20, 8 << 30
"""Bytes of one file that are read in all: four times the file and some, and never more than this.
Thousands of sections may name one table, so that a small file would be read for hours."""


def is_file(path: Path) -> bool:
    """Whether there is such a file and it may be seen, where `Path.is_file` would raise."""
    return _holds(path.is_file)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder and it may be seen."""
    return _holds(path.is_dir)


def exists(path: Path) -> bool:
    """Whether there is anything at a path that may be seen, of any length."""
    return _holds(path.exists)


def _holds(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):
        return False


class DamagedError(ValueError):
    """A file that contradicts itself: sizes past its end, tables that are none."""


class Source(Protocol):
    """Something with a size, readable piece by piece."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; DamagedError where they are not there."""
        ...


class BytesSource:
    """A source in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`."""
        check_range(offset, size, len(self._data))
        return self._data[offset : offset + size]


class FileSource(AbstractContextManager["FileSource"]):
    """A file, read piece by piece and never mapped: a mapping that is cut short kills its reader.

    It also keeps memory small: of a library of 1 GB, some hundred kilobytes are looked at.
    """

    def __init__(self, path: Path) -> None:
        # Without O_NONBLOCK a pipe that is named like a library would be waited for.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        self._file = os.fdopen(os.open(path, flags), "rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size
        self._left = min(4 * self.size + _ALWAYS, _LARGEST_SUM)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`."""
        check_range(offset, size, self.size)
        self._left -= size
        if self._left < 0:
            raise DamagedError("its tables ask for the same bytes over and over")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise DamagedError(f"{size} bytes at {offset} are not there: the file has shrunk")
        return data


def check_range(offset: int, size: int, limit: int) -> None:
    """Refuse a range that does not lie within `limit` bytes."""
    if offset < 0 or size < 0 or offset + size > limit:
        raise DamagedError(f"{size} bytes at {offset} do not lie within {limit} bytes")
    if size > LARGEST_READ:
        raise DamagedError(f"a table of {size} bytes is larger than any linker writes")
