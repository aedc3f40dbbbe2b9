"""From the machine flags to a machine this floor can price."""

from __future__ import annotations

from dataclasses import replace

from alula.cost.machine import Device, Machine, devices, links
from alula.errors import UsageError
from alula.machine.whatif import Gpus, WhatIf


def described_machine(what_if: WhatIf) -> Machine:
    """The machine that the flags describe. Raises UsageError, naming what is possible."""
    if what_if.report is not None:
        raise UsageError(
            f"--machine {what_if.report} cannot be priced yet",
            "estimates do not read reports of a machine yet",
            f"describe it: --machine 8x-{next(iter(devices()))}",
        )
    if len(what_if.gpus) > 1:
        raise UsageError(
            "estimates are for machines of one kind of GPU",
            f"--gpu was given {len(what_if.gpus)} times",
            "name the kind that the model runs on",
        )
    machine = _machine(what_if.machine, what_if.gpus[0] if what_if.gpus else None)
    return machine if what_if.links is None else _with_links(machine, what_if.links)


def _machine(named: Gpus | None, override: Gpus | None) -> Machine:
    if named is None and override is None:
        raise UsageError(
            "no machine was named",
            "an estimate is for a machine, which need not be this one",
            f"name one: --machine COUNTx-DEVICE, with DEVICE one of {', '.join(devices())}",
        )
    chosen = override or named
    assert chosen is not None
    base = None if named is None else _device(named, None)
    device = _device(chosen, base)
    count = chosen.count or (named.count if named is not None else None) or 1
    return Machine(device, count, device.link)


def _device(gpus: Gpus, base: Device | None) -> Device:
    known = devices()
    if gpus.kind in known:
        return known[gpus.kind]
    fitting = [device for device in known.values() if device.capability == gpus.kind]
    if base in fitting:
        assert base is not None
        return base
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = " and ".join(device.key for device in fitting)
        raise UsageError(
            f"--gpu {gpus.kind} does not say which GPU",
            f"{names} have this compute capability",
            f"name one: --gpu {fitting[0].key}x8",
        )
    raise UsageError(
        f"unknown GPU {gpus.kind!r}",
        "its bandwidth is not on record",
        f"name one of {', '.join(known)}",
    )


def _with_links(machine: Machine, asked: str) -> Machine:
    """`pcie` and `nvlink` mean the generation of the device, if it has such a link."""
    own = machine.device.link
    if asked == own or (asked in ("pcie", "nvlink") and own.startswith(asked)):
        return machine
    if asked == "pcie":
        return replace(machine, link="pcie5" if machine.device.capability >= "9" else "pcie4")
    if asked in links():
        return replace(machine, link=asked)
    if asked == "nvlink":
        why = f"a {machine.device.name} has no NVLink"
    else:
        why = f"links on record are pcie, nvlink, {', '.join(links())}"
    raise UsageError(f"--links {asked!r} cannot be used", why, "name another link")
