"""This machine, seen without CUDA: NVML where it answers, the kernel's files otherwise."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from dataclasses import replace

from alula.machine.facts import Driver, Gpu, Link, Machine
from alula.machine.nvml import Nvml, close_nvml, open_nvml
from alula.machine.platform_facts import SystemFiles, driver_of_kernel, pcie_of, read_platform

_SECONDS = 30.0
"""NVML answers in a second; on eight GPUs without persistence it wakes each of them, in ten."""


def observe(seconds: float = _SECONDS, files: SystemFiles | None = None) -> Machine:
    """What can be seen of this machine.

    NVML is waited for `seconds` at most: a driver that hangs is then a fact of the report. Its
    thread is left behind and ends with the process, since no call into a library can be ended.
    """
    files = files or SystemFiles()
    answers: queue.SimpleQueue[Machine | str] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(_ask(files)), daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        answer = f"NVML did not answer within {seconds:g} s"
    return answer if isinstance(answer, Machine) else machine_of(None, answer, files, os.environ)


def _ask(files: SystemFiles) -> Machine | str:
    """The machine, or why NVML could not be asked: whatever it raises, somebody waits for it."""
    try:
        nvml, reason = open_nvml()
        try:
            return machine_of(nvml, reason, files, os.environ)
        finally:
            if nvml is not None:
                close_nvml()
    except Exception as error:
        return f"NVML: {type(error).__name__}: {error}"


def machine_of(
    nvml: Nvml | None, reason: str, files: SystemFiles, environ: Mapping[str, str]
) -> Machine:
    """A machine from what NVML and the kernel's files say; `reason` is why NVML is None."""
    kernel = driver_of_kernel(files)
    if nvml is None:
        return Machine(
            driver=kernel, platform=read_platform(files, ()), notes=(_unseen(kernel, reason),)
        )
    gpus, notes = _mark_visible([_with_bus(files, gpu) for gpu in nvml.gpus()], environ)
    split = ", ".join(str(gpu.index) for gpu in gpus if gpu.mig == "on")
    if split:
        notes += (f"GPU {split} is split by MIG: CUDA sees its parts, with less memory each",)
    machine = Machine(
        gpus=gpus,
        links=nvml.links(),
        driver=replace(nvml.driver(), module=kernel.module),
        platform=read_platform(files, gpus),
        nvswitch=nvml.nvswitch(),
        notes=notes,
    )
    return replace(machine, interconnect=interconnect_of(machine.visible_links()))


def interconnect_of(links: tuple[Link, ...]) -> str:
    """Whether every pair is joined by NVLink."""
    distances = {link.distance for link in links}
    if not links or "" in distances:
        return ""
    return "nvlink" if all(distance.startswith("NV") for distance in distances) else "pcie"


def _unseen(driver: Driver, reason: str) -> str:
    if driver.version:
        return f"GPUs were not seen though driver {driver.version} is loaded ({reason})"
    return f"no GPU was seen and no NVIDIA driver is loaded ({reason}): software facts only"


def _with_bus(files: SystemFiles, gpu: Gpu) -> Gpu:
    if not gpu.pci:
        return gpu
    link, numa = pcie_of(files, gpu.pci)
    return replace(gpu, numa=numa, pcie=gpu.pcie if gpu.pcie.width else link)


def _mark_visible(
    gpus: list[Gpu], environ: Mapping[str, str]
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Hide what CUDA_VISIBLE_DEVICES hides. CUDA reads it up to the first entry that is none."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(gpus), ()
    shown: set[int] = set()
    for entry in filter(None, (part.strip() for part in chosen.split(","))):
        found = [gpu.index for gpu in gpus if _is_named(gpu, entry)]
        if not found:
            break
        shown.update(found)
    notes = [f"CUDA_VISIBLE_DEVICES shows {len(shown)} of {len(gpus)} GPUs"]
    mixed = len({gpu.name for gpu in gpus}) > 1
    if mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "GPUs of several kinds are numbered fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; "
            "the numbers here follow the bus"
        )
    return tuple(replace(gpu, visible=gpu.index in shown) for gpu in gpus), tuple(notes)


def _is_named(gpu: Gpu, entry: str) -> bool:
    if entry.isdigit():
        return int(entry) == gpu.index
    # A MIG part is named by its own id, or behind the id of its GPU.
    wanted = entry.removeprefix("MIG-").partition("/")[0]
    return entry.startswith(("GPU-", "MIG-GPU-")) and gpu.uuid.startswith(wanted)
