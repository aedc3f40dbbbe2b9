"""From a machine as it was seen, or asked about, to one this floor can price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from alula.cost.machine import Device, Machine, devices
from alula.errors import UsageError
from alula.machine.facts import Gpu
from alula.machine.facts import Machine as Seen
from alula.machine.observe import observe
from alula.machine.whatif import WhatIf, resolve


def described_machine(what_if: WhatIf, look: Callable[[], Seen] = observe) -> Machine:
    """The machine that the options describe, this one where they name none.

    Raises UsageError, naming what is possible, for no GPU, mixed ones, or one without figures.
    """
    seen = resolve(what_if, look)
    gpus = seen.visible()
    kinds = {(gpu.name, gpu.capability) for gpu in gpus}
    if not kinds:
        raise UsageError(
            "no machine was named, and this one shows no GPU",
            "an estimate is for a machine, which need not be this one",
            f"name one: --machine COUNTx-GPU, with GPU one of {', '.join(devices())}",
        )
    if len(kinds) > 1:
        names = ", ".join(sorted(name or capability for name, capability in kinds))
        raise UsageError(
            "estimates are for machines of one kind of GPU",
            f"this one has {names}",
            "describe the part that the model runs on: --machine COUNTx-GPU",
        )
    device = _device(gpus[0], _base(what_if))
    machine = Machine(device, len(gpus), device.link)
    return _joined(machine, seen.interconnect) if seen.interconnect else machine


def _base(what_if: WhatIf) -> Device | None:
    """The GPU that `--machine` names, where `--gpu` then says only a capability."""
    name = what_if.machine or ""
    return devices().get(name) or devices().get(name.partition("x-")[2])


def _device(gpu: Gpu, base: Device | None) -> Device:
    for device in devices().values():
        if gpu.name in device.reported:
            return device
    if gpu.name:
        raise _no_figures(gpu.name)
    return _of_capability(gpu.capability, base)


def _of_capability(capability: str, base: Device | None) -> Device:
    if base is not None and base.capability == capability:
        return base
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
    if own.startswith(links):
        return replace(machine, link=own)
    if links == "nvlink":
        raise UsageError(
            f"{machine.title} cannot be joined by nvlink",
            f"a {machine.device.name} has no NVLink",
            "take --links pcie",
        )
    gen5 = float(machine.device.capability) >= 9.0
    return replace(machine, link="pcie5" if gen5 else "pcie4")


def _no_figures(what: str) -> UsageError:
    return UsageError(
        f"no GPU {what!r} can be priced",
        "its bandwidth is not on record",
        f"name one of {', '.join(devices())}",
    )
