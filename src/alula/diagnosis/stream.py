"""Log files as a stream: the few lines worth reading, out of gigabytes, in bounded memory.

A chunk is searched for literal needles at the speed of `bytes.find`; only the lines that hold one
are cut out. Work is linear in the file's size whatever the file holds.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from alula.errors import UsageError

_CHUNK = 1 << 20
_BEFORE = 1024
_AFTER = 3072
"""Bytes kept around a needle: what a person reads of a line, and a bound on what patterns cost."""
_OVERLAP = 256
_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
_NO_TEXT = bytes({*range(1, 32), 127} - {*b"\a\b\t\n\v\f\r\x1b"})
"""Control characters that no log is made of; NULs are in many that were cut while written to."""
_HEAD = 4096
"""Bytes that tell what a file is; a log may hold shorter runs of anything."""
# Colours, cursor movements, titles and links of terminals.
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


class RawLine(NamedTuple):
    """A line that holds a needle, or the part of a very long one around it."""

    number: int
    """Counted from 1, as editors count."""
    text: str


class Needles(NamedTuple):
    """What to look for."""

    every: Sequence[bytes]
    """Each line that holds one of these is wanted."""
    latest: Sequence[bytes]
    """Of these only the last line of a chunk: signs of life that a healthy log is full of."""


def wanted_lines(path: Path, needles: Needles) -> Iterator[RawLine]:
    """The lines of a log that hold a needle, in order; plain, gzip or UTF-16.

    Raises `UsageError` for a file that cannot be read.
    """
    passed = 0
    for chunk in _chunks(path):
        clean = _ANSI.sub(b"", chunk) if b"\x1b" in chunk else chunk
        counted, position = 0, 0
        for start, end in _spans(clean, needles):
            counted += clean.count(b"\n", position, start)
            position = start
            yield RawLine(passed + counted + 1, clean[start:end].decode("utf-8", "replace"))
        passed += clean.count(b"\n")


def _chunks(path: Path) -> Iterator[bytes]:
    """The file in pieces that end with a line, except where a line is longer than a piece."""
    rest = b""
    for block in _blocks(path):
        data = rest + block
        cut = data.rfind(b"\n") + 1
        if cut:
            yield data[:cut]
            rest = data[cut:]
        elif len(data) >= _CHUNK:
            yield data
            rest = data[-_OVERLAP:]  # a needle may lie across the border
        else:
            rest = data
    if rest:
        yield rest


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file, _plain(file) as stream:
            _refuse_packed(path, stream.peek(8)[:8])
            encoding = _BYTE_ORDER_MARKS.get(stream.peek(2)[:2])
            if encoding is None:
                _refuse_binary(path, stream.peek(_HEAD)[:_HEAD])
            while block := stream.read(_CHUNK):
                # Blocks are even, so no UTF-16 unit is split.
                yield block.decode(encoding, "replace").encode() if encoding else block
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _plain(file: BufferedReader) -> BufferedReader:
    packed = file.peek(2)[:2] == b"\x1f\x8b"
    return BufferedReader(gzip.GzipFile(fileobj=file)) if packed else file


def _refuse_packed(path: Path, head: bytes) -> None:
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise UsageError(
                f"the log {path} cannot be read",
                f"it is packed with {name}; only gzip is unpacked here",
                "unpack it first, or pipe it in: alula diagnose -",
            )


def _refuse_binary(path: Path, head: bytes) -> None:
    if len(head) < _HEAD:
        return
    written = head.replace(b"\0", b"")
    odd = len(written) - len(written.translate(None, _NO_TEXT))
    if 20 * odd > len(written):
        raise UsageError(
            f"the log {path} cannot be read",
            "it holds no text",
            "name a text file, or a whole gzip file, of a log",
        )


def _unreadable(path: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error)
    return UsageError(
        f"the log {path} cannot be read", reason, "name a text file, or a whole gzip file, of a log"
    )


def _spans(chunk: bytes, needles: Needles) -> list[tuple[int, int]]:
    """Start and end of the wanted parts of a chunk, in order and without overlaps."""
    found: set[tuple[int, int]] = set()
    for needle in needles.every:
        position = chunk.find(needle)
        while position >= 0:
            span = _line_around(chunk, position)
            found.add(span)
            position = chunk.find(needle, span[1])
    for needle in needles.latest:
        position = chunk.rfind(needle)
        if position >= 0:
            found.add(_line_around(chunk, position))
    return _joined(sorted(found))


def _line_around(chunk: bytes, position: int) -> tuple[int, int]:
    low, high = max(0, position - _BEFORE), position + _AFTER
    # A carriage return ends a line too: progress bars write their last state before an error.
    start = max(chunk.rfind(b"\n", low, position), chunk.rfind(b"\r", low, position)) + 1 or low
    ends = (chunk.find(b"\n", position, high), chunk.find(b"\r", position, high))
    return start, min((end for end in ends if end >= 0), default=min(high, len(chunk)))


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that overlap, cut from the same long line, without the part seen before."""
    kept: list[tuple[int, int]] = []
    for start, end in spans:
        if kept and end <= kept[-1][1]:
            continue
        kept.append((max(start, kept[-1][1]) if kept else start, end))
    return kept
