"""From the machine options to a machine this floor can price.

`--machine 8x-rtx-pro-6000` or a report saved by the doctor, overridden by `--gpu 12.0[x8]` and
`--links pcie | nvlink`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from alula.cost.machine import Device, Machine, devices
from alula.errors import UsageError

_MACHINE = re.compile(r"([1-9]\d{0,3})x-([a-z0-9-]+)")
_GPU = re.compile(r"(\d{1,2}\.\d)(?:x([1-9]\d{0,3}))?")
_DRIVER = re.compile(r"\d+(\.\d+){1,2}")


@dataclass(frozen=True)
class WhatIf:
    """The four options as they were given."""

    machine: str | None = None
    gpus: Sequence[str] = ()
    driver: str | None = None
    links: str | None = None


class SeenGpu(NamedTuple):
    """What a report says of one GPU: the driver's name for it, and its compute capability."""

    name: str
    capability: str


def described_machine(what_if: WhatIf) -> Machine:
    """The machine that the options describe. Raises UsageError, naming what is possible."""
    base = None if what_if.machine is None else _named(what_if.machine)
    machine = _overridden(base, what_if.gpus) if what_if.gpus else base
    if machine is None:
        raise UsageError(
            "no machine was named",
            "an estimate is for a machine, which need not be this one",
            f"name one: --machine COUNTx-GPU, with GPU one of {', '.join(devices())}",
        )
    if what_if.driver is not None and not _DRIVER.fullmatch(what_if.driver):
        raise _refused("--driver", what_if.driver, "it is a version, as in 590.48.01")
    return machine if what_if.links is None else _joined(machine, what_if.links)


def seen_machine(gpus: Sequence[SeenGpu], interconnect: str) -> Machine:
    """A machine as it was seen. Raises UsageError for none, mixed or unknown GPUs."""
    kinds = set(gpus)
    if len(kinds) != 1:
        names = ", ".join(sorted(gpu.name or gpu.capability for gpu in kinds)) or "none"
        raise UsageError(
            "estimates are for machines of one kind of GPU",
            f"this one has {names}",
            "describe the part that the model runs on: --machine COUNTx-GPU",
        )
    device = _seen_device(gpus[0])
    machine = Machine(device, len(gpus), device.link)
    return _joined(machine, interconnect) if interconnect else machine


def _seen_device(gpu: SeenGpu) -> Device:
    for device in devices().values():
        if gpu.name in device.reported:
            return device
    if gpu.name:
        raise _no_figures(gpu.name)
    return _of_capability(gpu.capability, None)


def _named(text: str) -> Machine:
    if found := _MACHINE.fullmatch(text.lower()):
        known = devices()
        if found[2] not in known:
            raise _no_figures(found[2])
        device = known[found[2]]
        return Machine(device, int(found[1]), device.link)
    if not Path(text).is_file():
        raise _refused(
            "--machine", text, "it is neither a file nor a count and a GPU, as in 8x-rtx-pro-6000"
        )
    return _reported(Path(text))


def _reported(path: Path) -> Machine:
    """The machine of a report saved by the doctor."""
    try:
        machine = json.loads(path.read_text("utf-8"))["machine"]
        gpus = [
            SeenGpu(str(gpu["name"]), str(gpu["capability"]))
            for gpu in machine["gpus"]
            if gpu.get("visible", True)
        ]
        interconnect = str(machine.get("interconnect", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--machine {path} is not a report",
            f"{type(error).__name__}: {error}",
            "save one with alula doctor --json > report.json",
        ) from error
    return seen_machine(gpus, interconnect)


def _overridden(base: Machine | None, written: Sequence[str]) -> Machine:
    found = [_GPU.fullmatch(text.strip()) for text in written]
    for text, match in zip(written, found, strict=True):
        if match is None:
            raise _refused(
                "--gpu", text, "it is a compute capability, and a count behind an x, as in 12.0x8"
            )
    capabilities = {match[1] for match in found if match}
    if len(capabilities) > 1:
        raise UsageError(
            "estimates are for machines of one kind of GPU",
            f"--gpu names {', '.join(sorted(capabilities))}",
            "name the kind that the model runs on",
        )
    device = _of_capability(capabilities.pop(), base)
    return Machine(device, sum(int(match[2] or 1) for match in found if match), device.link)


def _of_capability(capability: str, base: Machine | None) -> Device:
    if base is not None and base.device.capability == capability:
        return base.device
    fitting = [device for device in devices().values() if device.capability == capability]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise _no_figures(f"of compute capability {capability}")
    raise UsageError(
        f"compute capability {capability} does not say which GPU",
        f"{' and '.join(device.key for device in fitting)} have it",
        f"name one as well: --machine 8x-{fitting[0].key}",
    )


def _joined(machine: Machine, links: str) -> Machine:
    """`pcie` and `nvlink` mean the generation that the device has."""
    own = machine.device.link
    if links not in ("pcie", "nvlink"):
        raise _refused("--links", links, "GPUs are joined by pcie or nvlink")
    if own.startswith(links):
        return replace(machine, link=own)
    if links == "nvlink":
        raise _refused("--links", links, f"a {machine.device.name} has no NVLink")
    gen5 = float(machine.device.capability) >= 9.0
    return replace(machine, link="pcie5" if gen5 else "pcie4")


def _no_figures(what: str) -> UsageError:
    return UsageError(
        f"no GPU {what!r} can be priced",
        "its bandwidth is not on record",
        f"name one of {', '.join(devices())}",
    )


def _refused(flag: str, text: str, why: str) -> UsageError:
    return UsageError(f"{flag} {text!r} is not understood", why, "see alula estimate --help")
