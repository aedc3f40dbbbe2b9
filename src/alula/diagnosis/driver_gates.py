"""Whether the driver is new enough: for the GPU, and for the CUDA that torch was built for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from alula.errors import UsageError
from alula.machine.capability import Capability
from alula.machine.driver_versions import MINIMUM_DRIVER, parse_driver
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.software import Software

_FIRST_BRANCH = {
    Capability(7, 0): 384,
    Capability(7, 5): 410,
    Capability(8, 0): 450,
    Capability(8, 6): 455,
    Capability(8, 9): 520,
    Capability(9, 0): 520,
    Capability(10, 0): 570,
    Capability(10, 3): 575,
    Capability(11, 0): 580,
    Capability(12, 0): 570,
    Capability(12, 1): 575,
}
"""First driver branch of each capability: with the toolkit that first compiled for it, by
the table of toolkits and drivers in NVIDIA's CUDA release notes."""
_ONLY_OPEN = 10
"""From this major capability on there is no closed kernel module (NVIDIA's driver README)."""


def driver_gates(machine: Machine, software: Software) -> Iterator[Gate]:
    """The closed gates of the driver; none where no driver was seen or asked about."""
    # Vendors of boards and clouds have version schemes of their own, which say nothing here.
    with suppress(UsageError):
        version = parse_driver(machine.driver.version)
        yield from _for_gpus(machine, version[0])
        yield from _for_torch(machine, software, version)


def _for_gpus(machine: Machine, branch: int) -> Iterator[Gate]:
    for gpu in machine.capabilities():
        first = _FIRST_BRANCH.get(gpu, 0)
        if branch < first:
            yield _gate(
                machine,
                str(gpu),
                f"driver {first} or newer for {gpu}",
                "first branch whose toolkit compiles for it, by NVIDIA's CUDA release notes",
                f"driver {first}",
            )
        if gpu.major >= _ONLY_OPEN and machine.driver.module == "closed":
            yield _gate(
                machine,
                str(gpu),
                f"the open kernel module for {gpu}",
                "/proc/driver/nvidia/version",
                "the open kernel module of the same driver",
            )


def _for_torch(machine: Machine, software: Software, version: tuple[int, ...]) -> Iterator[Gate]:
    torch = software.component("torch")
    major = re.match(r"cu(\d\d)", torch.variant) if torch else None
    floor = MINIMUM_DRIVER.get(int(major[1])) if major else None
    if torch is None or major is None or floor is None:
        return
    # A compatibility package (cuda-compat) brings a newer CUDA to an older driver.
    cuda = machine.driver.cuda_version()
    if version < floor and (cuda is None or cuda[0] < int(major[1])):
        yield _gate(
            machine,
            "torch",
            f"driver {dotted(floor)} or newer for {torch.variant}",
            f"{torch.variant} is from {torch.variant_from}; floors from NVIDIA's CUDA "
            "compatibility guide",
            f"driver {dotted(floor)}",
        )


def _gate(machine: Machine, feature: str, predicate: str, evidence: str, opened_in: str) -> Gate:
    module = f", {machine.driver.module} kernel module" if machine.driver.module else ""
    return Gate(
        component="driver",
        feature=feature,
        layer=Layer.DRIVER,
        predicate=predicate,
        observed=f"driver {machine.driver.version}{module}",
        verdict=GateVerdict.CLOSED,
        evidence=evidence,
        opened_in=opened_in,
    )


def dotted(version: Iterable[int]) -> str:
    """A driver's version as NVIDIA writes it: 580.65.06."""
    return ".".join(f"{part:02}" if n else str(part) for n, part in enumerate(version))
