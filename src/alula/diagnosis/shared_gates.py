"""Gates that stand in several chains: toolkit, peer access, multicast, an empty kernel."""

from __future__ import annotations

from collections.abc import Iterator

from alula.diagnosis.scene import CLOSED, OPEN, UNKNOWN, Scene
from alula.machine.gate import Gate, Layer
from alula.machine.toolkits import Toolkit

_NVCC_FLOOR = (12, 9)
_FIRST_WITH_MULTICAST = 9
"""Major capability. Source: the CUDA driver API's multicast objects, and NVIDIA's description of
NVLink SHARP in the switches of Hopper."""


def is_installed(scene: Scene, *packages: str) -> Gate:
    """Whether one of these packages is there."""
    found = scene.installed(*packages)
    return scene.gate(
        found or packages[0],
        Layer.VERSION_CHECK,
        f"{' or '.join(packages)} is installed",
        scene.with_version(found) if found else "it is not in this environment",
        OPEN if found else CLOSED,
        f"dist-info in {scene.software.environment or 'no environment'}",
    )


def nvcc_floor(scene: Scene) -> Iterator[Gate]:
    """FlashInfer's own floor for the toolkit, met after an upgrade where it is not met before."""
    if not is_12(scene):
        return
    found = scene.text("nvcc-12.9", "flashinfer-python")
    jit = scene.software.jit("FlashInfer")
    release = jit.toolkit.release() if jit and jit.toolkit else None
    yield scene.gate(
        "flashinfer-python",
        Layer.TOOLKIT,
        f"nvcc 12.9 or newer for 12.x{'' if found else ', which FlashInfer asks from 0.6.7 on'}",
        _toolkit_in_words(jit.toolkit if jit else None, jit.because if jit else ""),
        scene.whether(None if release is None else release >= _NVCC_FLOOR),
        found.where if found else "flashinfer/compilation_context.py of later releases",
        "CUDA toolkit 12.9",
    )


def _toolkit_in_words(toolkit: Toolkit | None, because: str) -> str:
    if toolkit is None:
        return f"no toolkit: {because}" if because else "no toolkit was found"
    return f"nvcc of {toolkit.path}, {toolkit.version or 'version unknown'}, because {because}"


def empty_kernel(scene: Scene) -> Iterator[Gate]:
    """The guard that leaves FlashInfer's all-reduce without a body on 12.x."""
    found = scene.text("empty-kernel", "flashinfer-python")
    if scene.gpu is None or not scene.installed("flashinfer-python") or not is_12(scene):
        return
    file = "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh"
    yield scene.gate(
        "flashinfer-python",
        Layer.CPP_CHECK,
        "the kernel has a body on 12.x",
        f"{found.text}: compiled for 12.x it does nothing" if found else "no such guard",
        CLOSED if found else OPEN,
        found.where if found else file,
        "flashinfer 0.6.17 (flashinfer#3903)",
    )


def multicast(scene: Scene) -> Gate:
    """What torch's symmetric memory asks of the hardware."""
    found = scene.text("multicast", "sglang") or scene.text("multicast", "vllm")
    switch = scene.machine.nvswitch
    if scene.machine.interconnect == "pcie":
        switch = False
    # The switches of the generation of 9.0 were the first with multicast.
    too_old = scene.gpu is not None and scene.gpu.major < _FIRST_WITH_MULTICAST
    observed = {True: "NVSwitch", False: "no NVSwitch", None: "it is not known"}[switch]
    return scene.gate(
        found.package if found else "hardware",
        Layer.HARDWARE,
        "multicast between the GPUs, which NVSwitch has from 9.0 on and PCIe has not",
        f"{scene.joined()}, {observed}",
        scene.whether(False if too_old else switch),
        found.where if found else "torch symmetric memory: multicast_ptr is 0 without it",
        "no release: hardware",
    )


def peer_access(scene: Scene) -> Gate:
    """Peer-to-peer access as the driver reports it; only a probe shows that it works."""
    links = scene.machine.visible_links()
    status = {text for link in links for text in (link.read, link.write) if text}
    refused = sorted(status - {"ok"})
    holds = None if not status else not refused
    if not scene.machine.gpus:
        observed = "no GPU was seen"
    elif len(scene.machine.visible()) < 2:
        observed, holds = "one GPU alone has no peer", False
    else:
        observed = ", ".join(refused) or ("ok for every pair" if status else "it was not read")
    return scene.gate(
        "driver",
        Layer.DRIVER,
        "peer-to-peer access between the GPUs",
        observed,
        scene.whether(holds),
        "NVML P2P status" if status else "alula doctor --probe p2p on that machine",
        probe="p2p",
    )


def measured_fusion(scene: Scene) -> Gate:
    """A published measurement, not one of this machine."""
    loses = scene.several_pcie() if is_12(scene) else None
    return scene.gate(
        "flashinfer-allreduce-fusion",
        Layer.MEASURED,
        "it is faster than without",
        "on 12.x over PCIe: TP2 gains 2 to 5 %, TP4 loses (published)",
        UNKNOWN if loses is None else CLOSED if loses else UNKNOWN,
        "sglang#32330, closed by its author on 2026-08-12; not measured on this machine",
    )


def is_12(scene: Scene) -> bool:
    """Whether the GPU is of the family 12.x."""
    return scene.gpu is not None and scene.gpu.major == 12
