"""Kernels that were compiled to nothing for one architecture and to something for another.

A guard like `#if __CUDA_ARCH__ < 1200` around a kernel's body leaves an empty kernel: it is
launched, does nothing, reports no error, and what it should have written stays as it was
(flashinfer#3903). An empty kernel is also a common and harmless thing, where templates are made
for more cases than an architecture has. So it is a warning with names and never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from alula.machine.capability import Capability, Loading, loading_of
from alula.machine.components import Component
from alula.machine.elf import ElfFile, UnknownLayoutError
from alula.machine.fatbin import Image, read_device_code
from alula.machine.images import kernel_sizes
from alula.machine.source import DamagedError, FileSource, Source
from alula.machine.target import Kind

EMPTY, FULL = 256, 1024
"""Bytes of code: an empty kernel has at most the one, a kernel with a body at least the other.
Measured on the libraries of sgl-kernel 0.3.21 and torch 2.9.1."""
_MOST_UNPACKED = 64 << 20
"""Bytes unpacked for one library, some ten seconds; the rest is counted as not read."""


@dataclass(frozen=True, slots=True)
class EmptyKernels:
    """What was found in one library for one capability."""

    component: str
    library: str
    capability: str
    kernels: tuple[str, ...]
    """Mangled names."""
    of: int
    """Kernels that could be compared with another architecture."""
    images_not_read: int
    """Compressed with ZSTD, or more than is unpacked."""


def find_empty_kernels(
    components: Iterable[Component], gpus: Iterable[Capability]
) -> tuple[EmptyKernels, ...]:
    """Every library in which a kernel is empty on a GPU, or in which not all could be read."""
    capabilities = tuple(gpus)
    found = []
    for component in components:
        for library in component.libraries:
            if library.containers:
                found += list(_of_library(component.name, Path(library.path), capabilities))
    return tuple(each for each in found if each.kernels or each.images_not_read)


def _of_library(component: str, path: Path, gpus: tuple[Capability, ...]) -> Iterator[EmptyKernels]:
    try:
        with FileSource(path) as source:
            code = read_device_code(source, ElfFile(source))
            cubins = [image for image in code.images if image.target.kind is Kind.CUBIN]
            sizes, unread = _sizes_by_image(source, cubins)
    except (OSError, DamagedError, UnknownLayoutError):
        return
    for gpu in gpus:
        empty, compared = _empty_on(gpu, cubins, sizes)
        yield EmptyKernels(component, str(path), str(gpu), tuple(sorted(empty)), compared, unread)


def _sizes_by_image(source: Source, cubins: list[Image]) -> tuple[list[dict[str, int] | None], int]:
    """Bytes of code by kernel for each image; None for one that was not read."""
    left = _MOST_UNPACKED
    sizes: list[dict[str, int] | None] = []
    for image in cubins:
        readable = not image.compression
        if image.compression == "lz4" and image.unpacked_size <= left:
            left -= image.unpacked_size
            readable = True
        sizes.append(kernel_sizes(source, image) if readable else None)
    return sizes, sizes.count(None)


def _empty_on(
    gpu: Capability, cubins: list[Image], sizes: list[dict[str, int] | None]
) -> tuple[set[str], int]:
    """Kernels that are empty in every image for a GPU and have a body in one for another."""
    here: dict[str, int] = {}
    elsewhere: dict[str, int] = {}
    for image, found in zip(cubins, sizes, strict=True):
        runs = loading_of(image.target, gpu, None) is Loading.RUNS
        target = here if runs else elsewhere
        for name, size in (found or {}).items():
            target[name] = max(size, target.get(name, 0))
    both = here.keys() & elsewhere.keys()
    empty = {name for name in both if here[name] <= EMPTY and elsewhere[name] >= FULL}
    return empty, len(both)
