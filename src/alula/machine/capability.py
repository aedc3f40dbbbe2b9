"""Compute capabilities, and which device code runs on which."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Self

from alula.errors import UsageError
from alula.machine.target import Kind, Target

Isa = tuple[int, int]
"""A version of the PTX language."""

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


def loading_of(target: Target, gpu: Capability, driver_isa: Isa | None) -> Loading:
    """What the driver makes of one image.

    The rules are those of the CUDA programming guide: a cubin runs on its major version from its
    minor version on, PTX is compiled for anything newer; `a` holds for one capability alone, `f`
    for the family. LTO code has to be linked first and is never loaded as it is.
    """
    if target.kind is Kind.LTO or not _covers(target, gpu):
        return Loading.NONE
    if target.kind is Kind.CUBIN:
        return Loading.RUNS
    if target.isa is None or driver_isa is None:
        return Loading.PTX_UNKNOWN
    return Loading.JIT if target.isa <= driver_isa else Loading.PTX_TOO_NEW


def best_loading(targets: Iterable[Target], gpu: Capability, driver_isa: Isa | None) -> Loading:
    """What comes of a container, which the driver loads by the best of its images."""
    found = {loading_of(target, gpu, driver_isa) for target in targets}
    return next((loading for loading in Loading if loading in found), Loading.NONE)


def _covers(target: Target, gpu: Capability) -> bool:
    made_for = Capability(target.arch // 10, target.arch % 10)
    if target.suffix == "a":
        return made_for == gpu
    if target.kind is Kind.PTX and not target.suffix:
        return made_for <= gpu
    if _INTEGRATED & {made_for, gpu}:
        return made_for == gpu
    return made_for.major == gpu.major and made_for.minor <= gpu.minor
