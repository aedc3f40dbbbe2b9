"""A machine as it is described on the command line, instead of the one at hand.

Every command spells it alike: `--machine report.json | 8x-rtx-pro-6000`, overridden by
`--gpu 12.0[x8]` (repeatable; a device's name does as well), `--driver 590.48.01`,
`--links pcie | nvlink`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from alula.errors import UsageError

_MACHINE = re.compile(r"(\d+)x-([a-z0-9-]+)")
_GPU = re.compile(r"(\d+\.\d+|[a-z0-9-]+?)(?:x(\d+))?")
_DRIVER = re.compile(r"\d+(\.\d+){1,2}")


@dataclass(frozen=True)
class Gpus:
    """So many GPUs of one kind: a compute capability such as 12.0, or a device's name."""

    kind: str
    count: int | None

    @property
    def is_capability(self) -> bool:
        """Whether the kind is a compute capability."""
        return self.kind[0].isdigit() and "." in self.kind


class WhatIf(NamedTuple):
    """What was said about the machine; None and empty where nothing was."""

    machine: Gpus | None
    report: str | None
    gpus: tuple[Gpus, ...]
    driver: str | None
    links: str | None


def parse_what_if(
    machine: str | None, gpus: Sequence[str], driver: str | None, links: str | None
) -> WhatIf:
    """Read the machine flags. Raises UsageError, naming it, for a flag that is not understood."""
    named = report = None
    if machine is not None and machine.endswith(".json"):
        report = machine
    elif machine is not None:
        named = _machine(machine)
    if driver is not None and not _DRIVER.fullmatch(driver):
        raise _refused("--driver", driver, "a version: 590.48.01")
    return WhatIf(named, report, tuple(_gpu(text) for text in gpus), driver, links)


def _machine(text: str) -> Gpus:
    match = _MACHINE.fullmatch(text.lower())
    if match is None or int(match[1]) < 1:
        raise _refused("--machine", text, "a count and a device: 8x-rtx-pro-6000")
    return Gpus(match[2], int(match[1]))


def _gpu(text: str) -> Gpus:
    match = _GPU.fullmatch(text.lower())
    if match is None or match[2] == "0":
        raise _refused("--gpu", text, "12.0x8, or a device: rtx-pro-6000x8")
    return Gpus(match[1], int(match[2]) if match[2] else None)


def _refused(flag: str, text: str, wanted: str) -> UsageError:
    return UsageError(f"{flag} {text!r} is not understood", "it has another form", f"give {wanted}")
