"""What is inside one cubin: its kernels, and for what it was made where no container says so."""

from __future__ import annotations

import re

from alula.machine.elf import ElfFile, UnknownLayoutError
from alula.machine.fatbin import Image
from alula.machine.lz4 import unpack
from alula.machine.source import BytesSource, DamagedError, Source
from alula.machine.target import ARCHITECTURES, Kind, Target

_CODE = ".text."
_NOTE = ".note.nv.tkinfo"
_LARGEST_NOTE = 1 << 16
_ARCH = re.compile(rb"-arch[ =]+sm_(\d{2,3})([af]?)")
_OLD_ARCHITECTURES = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90}
_LARGEST_IMAGE = 32 << 20


def kernel_sizes(source: Source, image: Image) -> dict[str, int] | None:
    """Bytes of code of each kernel of a cubin; None where it cannot be read."""
    try:
        if image.compression == "zstd" or max(image.size, image.unpacked_size) > _LARGEST_IMAGE:
            return None
        data = source.read(image.offset, image.size)
        if image.compression:
            data = unpack(data, image.unpacked_size)
        sections = ElfFile(BytesSource(data)).sections
    except (DamagedError, UnknownLayoutError):
        return None
    return {
        section.name.removeprefix(_CODE): section.size
        for section in sections
        if section.name.startswith(_CODE)
    }


def cubin_target(source: Source, elf: ElfFile) -> Target:
    """The target of a cubin that stands alone, from the command line that ptxas notes in it.

    Where there is none the flags of the ELF header are read, which do not tell every suffix: until
    version 7 the low byte is the architecture and bit 11 the `a`; from version 8 on the second byte
    is the architecture and bit 3 the `a`. Measured on the output of nvcc 12.8 to 13.0 and on the
    cubins of flashinfer-cubin 0.6.4.
    """
    for section in elf.named(_NOTE):
        note = source.read(section.offset, min(section.size, _LARGEST_NOTE))
        if found := _ARCH.search(note):
            return Target(Kind.CUBIN, int(found[1]), found[2].decode())
    low, second = elf.flags & 0xFF, elf.flags >> 8 & 0xFF
    if low in _OLD_ARCHITECTURES:
        return Target(Kind.CUBIN, low, "a" if elf.flags & 0x800 else "")
    if second not in ARCHITECTURES:
        raise DamagedError(f"a cubin with the unknown flags {elf.flags:#x}")
    return Target(Kind.CUBIN, second, "a" if elf.flags & 0x8 else "")
