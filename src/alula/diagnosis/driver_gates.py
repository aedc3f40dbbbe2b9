"""Whether the driver is new enough: for the GPU, and for the CUDA that torch was built for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from alula.machine.driver_versions import MINIMUM_DRIVER, parse_driver
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.software import Software

_FIRST_BRANCH = {7: 384, 8: 450, 9: 520, 10: 570, 12: 570}
"""First driver branch of each major capability: with the toolkit that first compiled for it, by
the table of toolkits and drivers in NVIDIA's CUDA release notes."""
_ONLY_OPEN = 10
"""From this major capability on there is no closed kernel module (NVIDIA's driver README)."""


def driver_gates(machine: Machine, software: Software) -> Iterator[Gate]:
    """The closed gates of the driver; none where no driver was seen or asked about."""
    if machine.driver.version:
        yield from _for_gpus(machine)
        yield from _for_torch(machine, software)


def _for_gpus(machine: Machine) -> Iterator[Gate]:
    branch = parse_driver(machine.driver.version)[0]
    for gpu in machine.capabilities():
        first = _FIRST_BRANCH.get(gpu.major, 0)
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


def _for_torch(machine: Machine, software: Software) -> Iterator[Gate]:
    torch = software.component("torch")
    major = re.match(r"cu(\d\d)", torch.variant) if torch else None
    floor = MINIMUM_DRIVER.get(int(major[1])) if major else None
    if torch is None or floor is None:
        return
    if parse_driver(machine.driver.version) < floor:
        yield _gate(
            machine,
            "torch",
            f"driver {_dotted(floor)} or newer for {torch.variant}",
            f"{torch.variant} is from {torch.variant_from}; floors from NVIDIA's CUDA "
            "compatibility guide",
            f"driver {_dotted(floor)}",
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


def _dotted(version: Iterable[int]) -> str:
    return ".".join(f"{part:02}" if n else str(part) for n, part in enumerate(version))
