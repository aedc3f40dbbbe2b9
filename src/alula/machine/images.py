"""What is inside one image: the kernels of a cubin."""

from __future__ import annotations

from alula.machine.elf import ElfFile, UnknownLayoutError
from alula.machine.fatbin import Image
from alula.machine.lz4 import unpack
from alula.machine.source import BytesSource, DamagedError, Source

_CODE = ".text."
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
