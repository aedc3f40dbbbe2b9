"""What an ELF file says about itself: sections, sonames, symbols.

Only the 64-bit little-endian layout, the one that every CUDA library for Linux has. The layout is
that of the System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from alula.machine.source import DamagedError, Source

_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")

_MOST_SECTIONS = 1 << 20
_NOBITS = 8
_DYNAMIC_SECTION = 6
_DYNAMIC_SYMBOLS = 11
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_WEAK = 2
_LOCAL = 0


class UnknownLayoutError(ValueError):
    """A file of another kind than the reader knows; nothing is said about it."""


class Section(NamedTuple):
    """One section: its name, its type, and where its bytes lie."""

    name: str
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Linkage:
    """What the dynamic loader is told."""

    soname: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    """RUNPATH or RPATH, `$ORIGIN` unexpanded."""


class ElfFile:
    """The section table of a file, read once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.machine, self.flags, self.sections = _read_sections(source)

    def named(self, *names: str) -> list[Section]:
        """Every section with one of these names: a file may repeat them."""
        return [section for section in self.sections if section.name in names]

    def linkage(self) -> Linkage:
        """Sonames and search path; empty where the file has no dynamic section."""
        entries: list[tuple[int, str]] = []
        for section in self._of_kind(_DYNAMIC_SECTION):
            strings = self._strings_of(section)
            data = self._bytes(section, _DYNAMIC)
            for tag, value in _DYNAMIC.iter_unpack(data):
                if tag == 0:
                    break
                if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH):
                    entries.append((tag, _text(strings, value)))
        paths = [text for tag, text in entries if tag in (_RPATH, _RUNPATH)]
        return Linkage(
            soname=next((text for tag, text in entries if tag == _SONAME), ""),
            needed=tuple(text for tag, text in entries if tag == _NEEDED),
            search_path=tuple(part for path in paths for part in path.split(":") if part),
        )

    def needed_symbols(self) -> frozenset[str]:
        """Dynamic symbols that it asks for; a weak one may stay unresolved and is not asked for."""
        return self._symbols(lambda index, binding: index == 0 and binding != _WEAK)

    def defined_symbols(self) -> frozenset[str]:
        """Dynamic symbols that it offers."""
        return self._symbols(lambda index, _: index != 0)

    def _symbols(self, wanted: Callable[[int, int], bool]) -> frozenset[str]:
        """Names, without their versions, of the symbols with such an index and binding."""
        names: set[str] = set()
        for section in self._of_kind(_DYNAMIC_SYMBOLS):
            strings = self._strings_of(section)
            for name, info, _, index, _, _ in _SYMBOL.iter_unpack(self._bytes(section, _SYMBOL)):
                if name and info >> 4 != _LOCAL and wanted(index, info >> 4):
                    names.add(_text(strings, name))
        return frozenset(names)

    def _of_kind(self, kind: int) -> list[Section]:
        return [section for section in self.sections if section.kind == kind]

    def _strings_of(self, section: Section) -> bytes:
        if section.link >= len(self.sections):
            raise DamagedError(f"{section.name} takes its names from a section that is not there")
        strings = self.sections[section.link]
        return self._source.read(strings.offset, strings.size)

    def _bytes(self, section: Section, entry: struct.Struct) -> bytes:
        return self._source.read(section.offset, section.size - section.size % entry.size)


def _read_sections(source: Source) -> tuple[int, int, tuple[Section, ...]]:
    if source.size < _HEADER.size:
        raise UnknownLayoutError("too short for an ELF file")
    header = _HEADER.unpack(source.read(0, _HEADER.size))
    magic, bits, order = header[0], header[1], header[2]
    if magic != b"\x7fELF":
        raise UnknownLayoutError("not an ELF file")
    if (bits, order) != (2, 1):
        raise UnknownLayoutError("not a 64-bit little-endian ELF file")
    machine, flags = header[7], header[12]
    table, entry_size, count, names = header[11], header[16], header[17], header[18]
    if table == 0:
        raise UnknownLayoutError("an ELF file without a section table")
    if entry_size != _SECTION.size:
        raise DamagedError(f"section headers of {entry_size} bytes")
    return machine, flags, _sections(source, table, count, names)


def _sections(source: Source, table: int, count: int, names: int) -> tuple[Section, ...]:
    first = _SECTION.unpack(source.read(table, _SECTION.size))
    # Counts that do not fit their 16 bits stand in section 0.
    count = count or first[5]
    names = first[6] if names == 0xFFFF else names
    if not names < count <= _MOST_SECTIONS:
        raise DamagedError(f"{count} sections, named by section {names}")
    headers = list(_SECTION.iter_unpack(source.read(table, count * _SECTION.size)))
    strings = source.read(headers[names][4], headers[names][5])
    # A section without bytes in the file is nobody's to read.
    return tuple(
        Section(_text(strings, name), kind, offset, 0 if kind == _NOBITS else size, link)
        for name, kind, _, _, offset, size, link, _, _, _ in headers
    )


def _text(strings: bytes, start: int) -> str:
    """The NUL-terminated name at `start` of a string table."""
    end = strings.find(b"\0", start) if start < len(strings) else -1
    if end < 0:
        raise DamagedError(f"a name at {start} of a table of {len(strings)} bytes")
    return strings[start:end].decode("utf-8", "replace")
