"""Compute capabilities, and which device code runs on which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Self

from alula.errors import UsageError
from alula.machine.fatbin import DeviceCode, Image, Kind

_WRITTEN = re.compile(r"(\d{1,2})\.(\d)")

_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)}
"""Parts of Jetson and Thor boards, outside the rule of minor versions. Source: the CUDA C++
programming guide, "binary compatibility ... not supported for Tegra"."""


class Capability(NamedTuple):
    """A compute capability, as (12, 0)."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "12.0"; UsageError for what is none."""
        found = _WRITTEN.fullmatch(text.strip())
        if found is None:
            raise UsageError(
                f"{text!r} is not a compute capability",
                "it is written as major and minor version with a point between",
                "write for example 12.0 or 9.0",
            )
        return cls(int(found[1]), int(found[2]))

    @property
    def arch(self) -> int:
        """As the toolkit writes it: 120."""
        return 10 * self.major + self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Loading(StrEnum):
    """What the driver does with device code on a GPU, best first."""

    RUNS = "runs"
    JIT = "jit"
    """Compiled from PTX when it is first loaded."""
    PTX_UNKNOWN = "ptx_unknown"
    """There is PTX for it, but the driver's PTX version is not known."""
    PTX_TOO_NEW = "ptx_too_new"
    """There is PTX for it, in a version that this driver does not know."""
    NONE = "none"


_BEST_FIRST = list(Loading)


def loading_of(image: Image, gpu: Capability, driver_isa: tuple[int, int] | None) -> Loading:
    """What the driver makes of one image.

    The rules are those of the CUDA programming guide: a cubin runs on its major version from its
    minor version on, PTX is compiled for anything newer; `a` holds for one capability alone, `f`
    for the family. LTO code has to be linked first and is never loaded as it is.
    """
    if image.kind is Kind.LTO or not _covers(image, gpu):
        return Loading.NONE
    if image.kind is Kind.CUBIN:
        return Loading.RUNS
    if image.isa is None or driver_isa is None:
        return Loading.PTX_UNKNOWN
    return Loading.JIT if image.isa <= driver_isa else Loading.PTX_TOO_NEW


def _covers(image: Image, gpu: Capability) -> bool:
    made_for = Capability(image.arch // 10, image.arch % 10)
    if image.suffix == "a":
        return made_for == gpu
    if image.suffix == "f":
        return made_for.major == gpu.major and made_for.minor <= gpu.minor
    if image.kind is Kind.PTX:
        return made_for <= gpu
    if _INTEGRATED & {made_for, gpu}:
        return made_for == gpu
    return made_for.major == gpu.major and made_for.minor <= gpu.minor


def loading_by_container(
    images: Iterable[Image], gpu: Capability, driver_isa: tuple[int, int] | None
) -> Mapping[Loading, int]:
    """How many containers of a file come to which end; each takes the best of its images."""
    best: dict[int, int] = {}
    for image in images:
        rank = _BEST_FIRST.index(loading_of(image, gpu, driver_isa))
        best[image.container] = min(rank, best.get(image.container, rank))
    return Counter(_BEST_FIRST[rank] for rank in best.values())


def loading_of_file(
    code: DeviceCode, gpu: Capability, driver_isa: tuple[int, int] | None
) -> Loading:
    """The best that any container of a file comes to.

    A file whose containers differ has kernels for several machines; `loading_by_container` tells.
    """
    found = loading_by_container(code.images, gpu, driver_isa)
    return next((loading for loading in _BEST_FIRST if found.get(loading)), Loading.NONE)
