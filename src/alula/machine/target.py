"""What a piece of device code is made for, as the toolkit writes it: sm_120a, compute_80@8.8."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple, Self


class Kind(StrEnum):
    """What an image holds."""

    CUBIN = "cubin"
    PTX = "ptx"
    LTO = "lto"


_PREFIXES = {Kind.CUBIN: "sm", Kind.PTX: "compute", Kind.LTO: "lto"}
_KINDS = {prefix: kind for kind, prefix in _PREFIXES.items()}
ARCHITECTURES = range(10, 1000)
"""What can be one: two or three digits."""

_WRITTEN = re.compile(r"(sm|compute|lto)_(\d{2,3})([af]?)(?:@(\d+)\.(\d+))?")


class Target(NamedTuple):
    """Kind, architecture and suffix of device code."""

    kind: Kind
    arch: int
    """Ten times the compute capability: 120 is 12.0."""
    suffix: str = ""
    """"a": this capability alone; "f": its family; "": what the load rules say."""
    isa: tuple[int, int] | None = None
    """Version of the PTX language, for PTX."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote; ValueError for anything else."""
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no target of device code")
        prefix, arch, suffix, major, minor = found.groups()
        isa = (int(major), int(minor)) if major else None
        return cls(_KINDS[prefix], int(arch), suffix, isa)

    def __str__(self) -> str:
        version = "@{}.{}".format(*self.isa) if self.isa else ""
        return f"{_PREFIXES[self.kind]}_{self.arch}{self.suffix}{version}"
