"""The whole chain of gates of a feature, so that nobody opens the first and meets the second.

Each chain runs from the package that offers the feature down to the machine. What a package's own
files say is taken from there; releases that open a gate, and measurements, carry their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from alula.diagnosis.component_gates import device_code_gates
from alula.diagnosis.scene import CLOSED, OPEN, UNKNOWN, Scene
from alula.errors import UsageError
from alula.machine.facts import Machine
from alula.machine.gate import Gate, Layer
from alula.machine.software import Software
from alula.machine.toolkits import Toolkit

_NVCC_FLOOR = (12, 9)


def chain(feature: str, machine: Machine, software: Software) -> tuple[Gate, ...]:
    """Every gate of a feature, on each kind of visible GPU.

    Raises UsageError for a feature that has no chain.
    """
    check_feature(feature)
    build = _CHAINS[feature]
    found: dict[Gate, None] = {}
    for gpu in machine.capabilities() or (None,):
        found.update(dict.fromkeys(build(Scene(feature, machine, software, gpu))))
    return tuple(found)


def check_feature(feature: str) -> None:
    """UsageError for a feature that has no chain."""
    if feature not in _CHAINS:
        raise UsageError(
            f"there is no feature {feature!r}",
            "alula knows the gates of a few features only",
            f"name one of {', '.join(_CHAINS)}",
        )


def _allreduce_fusion(scene: Scene) -> Iterator[Gate]:
    yield _is_installed(scene, "flashinfer-python")
    yield from scene.allow_list(
        "flashinfer-python",
        "jit/comm.py",
        "gen_trtllm_comm_module",
        "the list of gen_trtllm_comm_module",
        "flashinfer 0.6.17" if _is_12(scene) else "",
    )
    yield from _nvcc(scene)
    yield from _empty_kernel(scene)
    yield from scene.allow_list(
        "sglang",
        "layers/communicator.py",
        "apply_flashinfer_allreduce_fusion",
        "SGLang's own test (the flag does nothing where it fails)",
        "none up to 0.5.23; sglang#32330 was closed" if _is_12(scene) else "",
    )
    yield from scene.allow_list(
        "vllm",
        "allreduce_rms_fusion.py",
        "FI_ALLREDUCE_FUSION_MAX_SIZE_MB",
        "vLLM's table of sizes",
        "",
    )
    yield _peer_access(scene)
    yield _measured_fusion(scene)


def _symmetric_memory(scene: Scene) -> Iterator[Gate]:
    yield _is_installed(scene, "sglang", "vllm")
    yield from scene.allow_list(
        "sglang",
        "all_reduce_utils.py",
        "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES",
        "SGLang's table",
        "none up to 0.5.23; sglang#24548 turns the KeyError into a warning",
    )
    yield from scene.allow_list(
        "vllm", "all_reduce_utils.py", "SYMM_MEM_ALL_REDUCE_MAX_SIZES", "vLLM's table", ""
    )
    yield _multicast(scene)
    yield _peer_access(scene)


def _custom_allreduce(scene: Scene) -> Iterator[Gate]:
    yield _is_installed(scene, "sglang", "vllm")
    pcie = scene.several_pcie()
    for package in ("sglang", "vllm"):
        if found := scene.text("two-pcie-gpus", package):
            yield scene.gate(
                package,
                Layer.TOPOLOGY,
                "NVLink between all GPUs, or two GPUs at most",
                scene.joined(),
                scene.whether(None if pcie is None else not pcie),
                found.where,
                "no release: the kernel needs it",
            )
    kernel = scene.text("full-nvlink", "flashinfer-python")
    yield scene.gate(
        "flashinfer-python" if kernel else "custom_all_reduce.cuh",
        Layer.CPP_CHECK,
        "the dispatch launches a kernel: two GPUs, or NVLink between all",
        f"{scene.joined()}; otherwise nothing is launched and the output is left as it was",
        scene.whether(None if pcie is None else not pcie),
        kernel.where if kernel else "vllm custom_all_reduce.cuh; flashinfer#4393 says the same",
        "flashinfer 0.6.18 has another kernel for this: flashinfer-pcie-allreduce",
    )
    yield _peer_access(scene)


def _pcie_allreduce(scene: Scene) -> Iterator[Gate]:
    yield _is_installed(scene, "flashinfer-python")
    version = scene.software.packages.get("flashinfer-python", "")
    if version:
        kernel = scene.text("pcie-ipc", "flashinfer-python")
        yield scene.gate(
            "flashinfer-python",
            Layer.VERSION_CHECK,
            "FlashInfer has the pcie_ipc all-reduce",
            "gen_pcie_ipc_comm_module is there"
            if kernel
            else "gen_pcie_ipc_comm_module is not there",
            OPEN if kernel else CLOSED,
            kernel.where if kernel else "flashinfer/jit/comm.py",
            "flashinfer 0.6.18 (flashinfer#4393)",
        )
    yield from _nvcc(scene)
    for package, opened in (("vllm", "vllm#53576"), ("sglang", "sglang#34528, open in Aug 2026")):
        if scene.installed(package):
            wired = scene.text("pcie-ipc", package)
            yield scene.gate(
                package,
                Layer.VERSION_CHECK,
                f"{package} can be told to use it",
                "it has a setting for it" if wired else "it has no setting for it",
                OPEN if wired else CLOSED,
                wired.where if wired else f"no such setting in {package}",
                opened,
            )
    yield _peer_access(scene)


def _eagle3(scene: Scene) -> Iterator[Gate]:
    yield _is_installed(scene, "sglang", "vllm")
    for name in ("torch", "sgl-kernel", "sglang-kernel", "vllm"):
        component = scene.software.component(name)
        if component is None:
            continue
        lacking = component.missing
        yield scene.gate(
            name,
            Layer.LINKAGE,
            "its libraries find their sonames and symbols",
            f"{len(lacking)} of its libraries do not" if lacking else "they do",
            CLOSED if lacking else OPEN,
            f"{lacking[0].library}: {(lacking[0].torch_symbols or lacking[0].sonames)[:1]}"
            if lacking
            else f"symbols of {name}",
        )
        if scene.gpu is not None:
            yield from _images(scene, name)
    yield from _triton(scene)


def _images(scene: Scene, name: str) -> Iterator[Gate]:
    """The libraries of a component that have nothing for this GPU, or one gate that is open."""
    component = scene.software.component(name)
    if component is None or scene.gpu is None:
        return
    held = component.device_code()
    closed = [
        gate
        for library in held
        for gate in device_code_gates(scene.machine, component, library, scene.gpu)
    ]
    for gate in closed:
        yield scene.gate(
            name,
            gate.layer,
            gate.predicate,
            f"{gate.feature}: {gate.observed}",
            gate.verdict,
            gate.evidence,
            "none needed where another attention backend is chosen"
            if "flash" in gate.feature
            else "",
        )
    if held and not closed:
        yield scene.gate(
            name,
            Layer.DEVICE_CODE,
            f"images for {scene.gpu}",
            f"in each of {len(held)} libraries",
            OPEN,
            f"image: {held[0].path}",
        )


def _triton(scene: Scene) -> Iterator[Gate]:
    newer = scene.software.jit("Triton from 10.0 on")
    jit = newer if newer and scene.gpu and scene.gpu.major >= 10 else scene.software.jit("Triton")
    if jit is None or jit.toolkit is None or scene.gpu is None:
        return
    suffix = "a" if scene.gpu.major >= 9 else ""
    yield scene.gate(
        "triton",
        Layer.TOOLKIT,
        f"its ptxas knows sm_{scene.gpu.arch}{suffix}",
        f"ptxas {jit.toolkit.version}: {jit.because}",
        scene.whether(jit.toolkit.knows(scene.gpu, suffix)),
        f"image: {jit.toolkit.path}",
        "triton 3.6, or TRITON_PTXAS_PATH set to a newer one",
    )


def _is_installed(scene: Scene, *packages: str) -> Gate:
    found = scene.installed(*packages)
    return scene.gate(
        found or packages[0],
        Layer.VERSION_CHECK,
        f"{' or '.join(packages)} is installed",
        scene.with_version(found) if found else "it is not in this environment",
        OPEN if found else CLOSED,
        f"dist-info in {scene.software.environment or 'no environment'}",
    )


def _nvcc(scene: Scene) -> Iterator[Gate]:
    """FlashInfer's own floor for the toolkit, met after an upgrade where it is not met before."""
    if not _is_12(scene):
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


def _empty_kernel(scene: Scene) -> Iterator[Gate]:
    found = scene.text("empty-kernel", "flashinfer-python")
    if scene.gpu is None or not scene.installed("flashinfer-python") or not _is_12(scene):
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


def _multicast(scene: Scene) -> Gate:
    found = scene.text("multicast", "sglang") or scene.text("multicast", "vllm")
    switch = scene.machine.nvswitch
    if scene.machine.interconnect == "pcie":
        switch = False
    observed = {True: "NVSwitch", False: "no NVSwitch", None: "it is not known"}[switch]
    return scene.gate(
        found.package if found else "hardware",
        Layer.HARDWARE,
        "multicast between the GPUs, which NVSwitch has and PCIe has not",
        f"{scene.joined()}, {observed}",
        scene.whether(switch),
        found.where if found else "torch symmetric memory: multicast_ptr is 0 without it",
        "no release: hardware",
    )


def _peer_access(scene: Scene) -> Gate:
    """Peer-to-peer access as the driver reports it; only a probe shows that it works."""
    links = scene.machine.links
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
    )


def _measured_fusion(scene: Scene) -> Gate:
    """A published measurement, not one of this machine."""
    loses = scene.several_pcie() if _is_12(scene) else None
    return scene.gate(
        "flashinfer-allreduce-fusion",
        Layer.MEASURED,
        "it is faster than without",
        "on 12.x over PCIe: TP2 gains 2 to 5 %, TP4 loses (published)",
        UNKNOWN if loses is None else CLOSED if loses else UNKNOWN,
        "sglang#32330, closed by its author on 2026-08-12; measure here with alula bench",
    )


def _is_12(scene: Scene) -> bool:
    return scene.gpu is not None and scene.gpu.major == 12


_CHAINS: dict[str, Callable[[Scene], Iterator[Gate]]] = {
    "flashinfer-allreduce-fusion": _allreduce_fusion,
    "torch-symm-mem": _symmetric_memory,
    "custom-allreduce": _custom_allreduce,
    "flashinfer-pcie-allreduce": _pcie_allreduce,
    "eagle3": _eagle3,
}
FEATURES = tuple(_CHAINS)


def first_closed(gates: tuple[Gate, ...]) -> Gate | None:
    """The gate that is met first."""
    return next((gate for gate in gates if gate.verdict is CLOSED), None)
