"""Small ELF files and fat binaries, written byte by byte for the tests of their readers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """One section to be written."""

    name: str
    data: bytes
    kind: int = 1
    link: str = ""


def write_elf(parts: Sequence[Part], machine: int = 62, flags: int = 0) -> bytes:
    """A 64-bit little-endian ELF file with these sections and nothing else."""
    names = b"\0"
    where: dict[str, int] = {}
    for name in [part.name for part in parts] + [".shstrtab"]:
        where.setdefault(name, len(names))
        names += name.encode() + b"\0"
    numbers = {part.name: number for number, part in enumerate(parts, start=1)}
    body, headers = b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for part in [*parts, Part(".shstrtab", names, 3)]:
        body += b"\0" * (-len(body) % 8)
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ",
                *(where[part.name], part.kind, 0, 0, 64 + len(body), len(part.data)),
                *(numbers.get(part.link, 0), 0, 8, 0),
            )
        )
        body += part.data
    body += b"\0" * (-len(body) % 8)
    start = struct.pack(
        "<4sBBBBB7xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 0, 3, machine, 1, 0, 0, 64 + len(body), flags),
        *(64, 0, 0, 64, len(headers), len(headers) - 1),
    )
    return start + body + b"".join(headers)


def write_image(
    arch: int,
    suffix: str = "",
    kind: int = 2,
    isa: tuple[int, int] = (8, 8),
    payload: bytes = b"\x7f" * 24,
    flags: int = 0,
    extension: bytes = b"",
) -> bytes:
    """One image with its header; kind 1 is PTX, 2 a cubin, 8 LTO code."""
    bits = 0x11 | flags | {"": 0, "a": 0x100000, "f": 0x200000}[suffix]
    packed = len(payload) if flags & 0xA000 else 0
    padded = payload + b"\0" * (-len(payload) % 8)
    major, minor = isa if kind == 1 else (1, 7)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x0101, 64 + len(extension), len(padded), packed, 64 if extension else 0),
        *(minor, major, arch, 0, 0, bits, 0, len(payload)),
    )
    return header + extension + padded


def write_container(*images: bytes) -> bytes:
    """A container around images."""
    inside = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside


def write_library(
    *containers: bytes,
    relocatable: Sequence[bytes] = (),
    needed: Sequence[str] = (),
    soname: str = "",
    runpath: str = "",
    undefined: Sequence[str] = (),
    weak: Sequence[str] = (),
    defined: Sequence[str] = (),
) -> bytes:
    """A shared library with device code, sonames and dynamic symbols."""
    strings = b"\0"
    where: dict[str, int] = {}
    for text in [*needed, soname, runpath, *undefined, *weak, *defined]:
        where.setdefault(text, len(strings))
        strings += text.encode() + b"\0"
    tags = [(1, where[text]) for text in needed]
    tags += [(14, where[soname])] if soname else []
    tags += [(29, where[runpath])] if runpath else []
    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    symbols += [struct.pack("<IBBHQQ", where[name], 0x12, 0, 0, 0, 0) for name in undefined]
    symbols += [struct.pack("<IBBHQQ", where[name], 0x22, 0, 0, 0, 0) for name in weak]
    symbols += [struct.pack("<IBBHQQ", where[name], 0x12, 0, 1, 64, 8) for name in defined]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in [*tags, (0, 0)])
    parts = [
        Part(".nv_fatbin", b"".join(containers)),
        Part("__nv_relfatbin", b"".join(relocatable)),
        Part(".dynstr", strings, 3),
        Part(".dynsym", b"".join(symbols), 11, ".dynstr"),
        Part(".dynamic", dynamic, 6, ".dynstr"),
    ]
    return write_elf([part for part in parts if part.data])
