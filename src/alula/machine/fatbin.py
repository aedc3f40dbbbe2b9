"""What device code a library carries, read from its bytes alone.

nvcc puts one container for each source file into `.nv_fatbin`, or into `__nv_relfatbin` where the
code is relocatable. A container is a header of 16 bytes and a row of images, each with a header
that names kind, architecture and size; the images themselves are skipped, never decompressed. The
layout is not documented; it was measured on the output of nvcc 12.8 to 13.0 and agrees with the
toolkit's `fatbinary_section.h`. What does not follow it is reported as unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from alula.machine.elf import ElfFile, Section
from alula.machine.source import DamagedError, Source
from alula.machine.target import ARCHITECTURES, Kind, Target

SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_CONTAINER = struct.Struct("<IHHQ")
_MAGIC = 0xBA55ED50
_IMAGE = struct.Struct("<HHIQIIHHIIIQQQ")
_IMAGE_MARK = 0x0101
_LONGEST_HEADER = 4096
_MOST_IMAGES = 200_000  # libtorch_cuda.so has under 4,000
_LONGEST_PADDING = 1 << 16

_LZ4, _ZSTD = 0x2000, 0x8000
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x100000, 0x200000


_KINDS = {1: Kind.PTX, 2: Kind.CUBIN, 8: Kind.LTO}


class Image(NamedTuple):
    """One image of a container."""

    container: int
    """Number of the container in the file, from 0."""
    target: Target
    compression: str
    """"lz4", "zstd", or "" for none."""
    offset: int
    size: int
    """Where the payload lies in the file."""
    unpacked_size: int


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The images of one file, and what in it could not be read."""

    images: tuple[Image, ...]
    containers: int
    unknown: tuple[str, ...]


def read_device_code(source: Source, elf: ElfFile) -> DeviceCode:
    """Every image of a library.

    Raises nothing on damaged content: what could be read before the damage counts, and `unknown`
    says where it ended.
    """
    images: list[Image] = []
    unknown: list[str] = []
    containers = 0
    for section in elf.named(*SECTIONS):
        try:
            for found in _containers(source, section, containers):
                containers += 1
                images.extend(found)
                if len(images) > _MOST_IMAGES or containers > _MOST_IMAGES:
                    raise DamagedError(f"more than {_MOST_IMAGES} images or containers")
        except DamagedError as damage:
            unknown.append(f"{section.name}: {damage}")
    return DeviceCode(tuple(images), containers, tuple(unknown))


def _containers(source: Source, section: Section, first: int) -> Iterator[list[Image]]:
    """The images of each container of a section."""
    position, end = section.offset, section.offset + section.size
    if end > source.size:
        raise DamagedError(f"it ends at {end} in a file of {source.size} bytes")
    number = first
    while (position := _skip_padding(source, position, end)) < end:
        if position + _CONTAINER.size > end:
            raise DamagedError(f"{end - position} bytes at {position} are no container")
        magic, version, header, size = _CONTAINER.unpack(source.read(position, _CONTAINER.size))
        if (magic, version, header) != (_MAGIC, 1, _CONTAINER.size):
            raise DamagedError(f"the bytes at {position} are no container of a known version")
        position += header
        if position + size > end:
            raise DamagedError(f"the container at {position - header} ends past its section")
        yield list(_images(source, number, position, position + size))
        position += size
        number += 1


def _images(source: Source, container: int, position: int, end: int) -> Iterator[Image]:
    for _ in range(_MOST_IMAGES):
        if position == end:
            return
        if position + _IMAGE.size > end:
            raise DamagedError(f"{end - position} bytes at {position} are no image")
        image, position = _image(source, container, position, end)
        yield image
    raise DamagedError(f"more than {_MOST_IMAGES} images in a container")


def _image(source: Source, container: int, position: int, end: int) -> tuple[Image, int]:
    """One image, and where the next begins."""
    fields = _IMAGE.unpack(source.read(position, _IMAGE.size))
    kind, mark, header, padded, packed, _, minor, major, arch, _, _, flags, _, unpacked = fields
    if mark != _IMAGE_MARK or header % 8 or not _IMAGE.size <= header <= _LONGEST_HEADER:
        raise DamagedError(f"the bytes at {position} are no image of a known layout")
    following = position + header + padded
    if following > end or packed > padded:
        raise DamagedError(f"the image at {position} ends past its container")
    if kind not in _KINDS:
        raise DamagedError(f"the image at {position} is of the unknown kind {kind}")
    if arch not in ARCHITECTURES:
        raise DamagedError(f"the image at {position} is for the unknown architecture {arch}")
    known = _KINDS[kind]
    isa = (major, minor) if known is Kind.PTX else None
    read = Image(
        container=container,
        target=Target(known, arch, _suffix(flags), isa),
        compression="lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else "",
        offset=position + header,
        size=packed or padded,
        unpacked_size=unpacked,
    )
    return read, following


def _suffix(flags: int) -> str:
    return "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""


def _skip_padding(source: Source, position: int, end: int) -> int:
    """Where the zeros between two containers end."""
    # Most containers follow one another directly: look at a word before looking at a page.
    for window in (8, _LONGEST_PADDING):
        piece = source.read(position, min(window, end - position))
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        if zeros < len(piece):
            return position + zeros - zeros % 8
        if position + zeros == end:
            return end
    raise DamagedError(f"more than {_LONGEST_PADDING} zeros at {position}")
