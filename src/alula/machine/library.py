"""What one binary of a package says: device code, sonames, and symbols asked of torch and NCCL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from alula.machine.capability import Capability, Isa, Loading, best_loading
from alula.machine.elf import ElfFile, UnknownLayoutError
from alula.machine.fatbin import DeviceCode, Image, read_device_code
from alula.machine.images import cubin_target, kernel_sizes
from alula.machine.source import DamagedError, FileSource, Source
from alula.machine.target import Kind, Target

_CUBIN_MACHINE = 190
_FEW, _SMALL = 16, 8192
_HOLLOW = "no kernel is seen in its images; there may be some packed in a way of its own"

_TORCH = re.compile(r"_Z[A-Z]*K?(?:3c10|2at|5torch|6caffe2)|aoti_torch_")
"""Mangled names within torch's namespaces; a name may start with a type of them too, which is
then not torch's to define and is found in the library itself."""
_NCCL = re.compile(r"nccl[A-Z]")


@dataclass(frozen=True, slots=True)
class Library:
    """The facts of one file. `containers` maps the targets of a container to how many have them."""

    path: str
    size: int
    containers: Mapping[str, int] = field(default_factory=dict)
    soname: str = ""
    needed: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    torch_symbols: tuple[str, ...] = ()
    """Those it asks for."""
    nccl_symbols: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be read, and why."""

    def targets(self) -> dict[str, int]:
        """In how many containers each target occurs."""
        found: Counter[str] = Counter()
        for signature, count in self.containers.items():
            for target in set(signature.split()):
                found[target] += count
        return dict(sorted(found.items(), key=lambda item: Target.parse(item[0])))

    def loadings(self, gpu: Capability, driver_isa: Isa | None) -> dict[Loading, int]:
        """How many containers come to which end on a GPU, best first."""
        found: Counter[Loading] = Counter()
        for signature, count in self.containers.items():
            found[best_loading(_targets(signature), gpu, driver_isa)] += count
        return {loading: found[loading] for loading in Loading if found[loading]}

    def loading(self, gpu: Capability, driver_isa: Isa | None) -> Loading | None:
        """The best that any container comes to; None where there is no device code."""
        return next(iter(self.loadings(gpu, driver_isa)), None)


def read_library(path: Path) -> Library:
    """The facts of a shared library or a cubin.

    A file that cannot be read, or is of a kind that alula does not know, has the reason in
    `unknown` and no facts.
    """
    try:
        with FileSource(path) as source:
            try:
                return _read(path, source)
            except (DamagedError, UnknownLayoutError) as reason:
                return Library(str(path), source.size, unknown=(str(reason),))
    except OSError as error:
        return Library(str(path), 0, unknown=(error.strerror or "it cannot be opened",))


def defined_symbols(path: Path) -> frozenset[str]:
    """The dynamic symbols that a library offers; empty where it cannot be read."""
    try:
        with FileSource(path) as source:
            return ElfFile(source).defined_symbols()
    except (OSError, DamagedError, UnknownLayoutError):
        return frozenset()


def of_torch_or_nccl(symbols: frozenset[str]) -> tuple[str, ...]:
    """Those within torch's namespaces, and NCCL's."""
    return (*_matching(_TORCH, symbols), *_matching(_NCCL, symbols))


def _read(path: Path, source: FileSource) -> Library:
    elf = ElfFile(source)
    if elf.machine == _CUBIN_MACHINE:
        return Library(str(path), source.size, {str(cubin_target(source, elf)): 1})
    code = read_device_code(source, elf)
    linkage, symbols = elf.linkage(), elf.needed_symbols()
    hollow = _holds_no_kernel(source, code)
    return Library(
        path=str(path),
        size=source.size,
        containers={} if hollow else _containers(code),
        soname=linkage.soname,
        needed=linkage.needed,
        search_path=linkage.search_path,
        torch_symbols=_matching(_TORCH, symbols),
        nccl_symbols=_matching(_NCCL, symbols),
        unknown=(*code.unknown, _HOLLOW) if hollow else code.unknown,
    )


def _holds_no_kernel(source: Source, code: DeviceCode) -> bool:
    """Whether all there is are stubs, as in libcufft, which packs its kernels in its own way.

    Only libraries of a few small images are looked into; in any other there is something. What is
    packed so that it cannot be read may be a stub as well: libcufft 12.0 has one, under zstd.
    """

    def may_be_stub(image: Image) -> bool:
        return image.compression == "zstd" or kernel_sizes(source, image) == {}

    if not code.images or len(code.images) > _FEW or code.unknown:
        return False
    if any(each.size > _SMALL or each.target.kind is not Kind.CUBIN for each in code.images):
        return False
    return all(map(may_be_stub, code.images))


def _containers(code: DeviceCode) -> dict[str, int]:
    targets: dict[int, set[Target]] = {}
    for image in code.images:
        targets.setdefault(image.container, set()).add(image.target)
    return dict(Counter(" ".join(map(str, sorted(found))) for found in targets.values()))


def _matching(pattern: re.Pattern[str], names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if pattern.match(name)))


@lru_cache(maxsize=4096)
def _targets(signature: str) -> tuple[Target, ...]:
    return tuple(Target.parse(text) for text in signature.split())
