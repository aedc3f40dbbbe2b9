"""A wheel looked into from afar: its table of contents and single members, by pieces of the file.

A wheel is a zip archive, whose table stands at its end; so the METADATA of 900 MB is a read of some
64 KB. Members come whole: device code cannot be read through the middle of a packed one.
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from alula.errors import MachineError
from alula.stack.listing import WheelFile
from alula.stack.reading import Reader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_TAIL = 64 << 10
_AHEAD = 256 << 10
"""Read at once at least: members of a folder lie side by side."""

DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError),
)
"""What reading an archive raises that is cut short, contradicts itself or is packed oddly."""


class RemoteFile(io.RawIOBase):
    """A file of an index, readable at any place."""

    def __init__(self, reader: Reader, url: str, advance: Callable[[int], None]) -> None:
        self._reader, self._url, self._advance = reader, url, advance
        self._at = 0
        self._start, self._piece, self._size = reader.piece(url, -_TAIL, 0)
        self._tail = (self._start, self._piece)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        """What fits into the buffer."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._bytes(self._at, wanted)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _bytes(self, start: int, size: int) -> bytes:
        for first, piece in (self._tail, (self._start, self._piece)):
            if first <= start < first + len(piece):
                return piece[start - first : start - first + size]
        end = min(start + max(size, _AHEAD), self._size)
        self._start, self._piece, _ = self._reader.piece(self._url, start, end)
        self._advance(len(self._piece))
        return self._piece[start - self._start : start - self._start + size]


def open_wheel(
    reader: Reader, file: WheelFile, advance: Callable[[int], None] = lambda _: None
) -> zipfile.ZipFile:
    """The archive of a wheel. Raises MachineError where it is not there or is no archive."""
    try:
        return zipfile.ZipFile(io.BufferedReader(RemoteFile(reader, file.url, advance), 1 << 16))
    except DAMAGE as error:
        raise _unreadable(file, error) from error


def wheel_size(archive: zipfile.ZipFile) -> int:
    """The bytes of the whole file."""
    assert archive.fp is not None
    return archive.fp.seek(0, io.SEEK_END)


def read_metadata(reader: Reader, file: WheelFile) -> bytes:
    """The METADATA of a wheel: from beside it where the index has it there, else from within."""
    if file.has_metadata:
        with suppress(OSError):
            return reader.piece(f"{file.url}.metadata", 0, 16 << 20)[1]
    with open_wheel(reader, file) as archive:
        try:
            return archive.read(metadata_member(archive))
        except DAMAGE as error:
            raise _unreadable(file, error) from error


def metadata_member(archive: zipfile.ZipFile) -> str:
    """The name of the METADATA of a wheel; KeyError where it has none."""
    for name in archive.namelist():
        folder, _, last = name.rpartition("/")
        if last == "METADATA" and folder.endswith(".dist-info") and "/" not in folder:
            return name
    raise KeyError("it has no METADATA")


def _unreadable(file: WheelFile, error: Exception) -> MachineError:
    return MachineError(
        f"{file.filename} of the index {file.index} cannot be read",
        str(error) or type(error).__name__,
        "check the index, or name another one with --index",
    )
