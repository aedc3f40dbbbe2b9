"""What a driver's version implies: its CUDA version, and the PTX that it compiles."""

from __future__ import annotations

import re

from alula.errors import UsageError

_BRANCHES = (
    (610, (13, 3)),
    (595, (13, 2)),
    (590, (13, 1)),
    (580, (13, 0)),
    (575, (12, 9)),
    (570, (12, 8)),
    (565, (12, 7)),
    (560, (12, 6)),
    (555, (12, 5)),
    (550, (12, 4)),
    (545, (12, 3)),
    (535, (12, 2)),
    (530, (12, 1)),
    (525, (12, 0)),
    (520, (11, 8)),
    (515, (11, 7)),
    (510, (11, 6)),
    (495, (11, 5)),
    (470, (11, 4)),
    (465, (11, 3)),
    (460, (11, 2)),
    (455, (11, 1)),
    (450, (11, 0)),
)
"""First driver branch of each CUDA version. Source: NVIDIA's CUDA 13.1 release notes, table of
toolkit and driver versions; 595 and 610 as seen in reports of users."""

_NEWEST_BRANCH = 619
"""What later branches bring is not known."""

_ISA_OF_CUDA_12 = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 5, 7: 6, 8: 7, 9: 8}
"""Minor PTX version by minor CUDA version. Source: PTX ISA manual, table of release notes."""

_ISA_MAJORS = {11: 7, 13: 9}
"""Where the minor version of PTX is that of CUDA; 11.8 was the last of its line. Same source."""

MINIMUM_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""Lowest driver of each CUDA major version. Source: NVIDIA's CUDA compatibility guide."""

_WRITTEN = re.compile(r"\d{3}(\.\d{1,4}){0,3}")


def parse_driver(text: str) -> tuple[int, ...]:
    """Read "590.48.01"; UsageError for what is none."""
    if _WRITTEN.fullmatch(text.strip()) is None:
        raise UsageError(
            f"{text!r} is not a driver version",
            "a version of NVIDIA's driver starts with a branch of three digits",
            "write it as nvidia-smi shows it, for example 590.48.01",
        )
    return tuple(int(part) for part in text.strip().split("."))


def cuda_of_driver(driver: tuple[int, ...]) -> tuple[int, int] | None:
    """The CUDA version that a driver of this version brings; None where it is not known."""
    if driver[:1] > (_NEWEST_BRANCH,):
        return None
    return next((cuda for branch, cuda in _BRANCHES if driver[:1] >= (branch,)), None)


def ptx_isa_of_cuda(cuda: tuple[int, int]) -> tuple[int, int] | None:
    """The newest PTX version that a driver or toolkit of this CUDA version knows."""
    major, minor = cuda
    if major == 12 and minor in _ISA_OF_CUDA_12:
        return 8, _ISA_OF_CUDA_12[minor]
    if major in _ISA_MAJORS and (major != 11 or minor <= 8):
        return _ISA_MAJORS[major], minor
    return None
