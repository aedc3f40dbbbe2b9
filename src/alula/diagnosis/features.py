"""The whole chain of gates of a feature, so that nobody opens the first and meets the second.

Each chain runs from the package that offers the feature down to the machine. What a package's own
files say is taken from there; releases that open a gate, and measurements, carry their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from alula.diagnosis.eagle3_chain import eagle3
from alula.diagnosis.scene import CLOSED, OPEN, Scene
from alula.diagnosis.shared_gates import (
    empty_kernel,
    is_12,
    is_installed,
    measured_fusion,
    multicast,
    nvcc_floor,
    peer_access,
)
from alula.errors import UsageError
from alula.machine.facts import Machine
from alula.machine.gate import Gate, Layer
from alula.machine.software import Software


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
    yield is_installed(scene, "flashinfer-python")
    yield from scene.allow_list(
        "flashinfer-python",
        "jit/comm.py",
        "gen_trtllm_comm_module",
        "the list of gen_trtllm_comm_module",
        "flashinfer 0.6.17" if is_12(scene) else "",
    )
    yield from nvcc_floor(scene)
    yield from empty_kernel(scene)
    yield from scene.allow_list(
        "sglang",
        "layers/communicator.py",
        "apply_flashinfer_allreduce_fusion",
        "SGLang's own test (the flag does nothing where it fails)",
        "none up to 0.5.23; sglang#32330 was closed" if is_12(scene) else "",
    )
    yield from scene.allow_list(
        "vllm",
        "allreduce_rms_fusion.py",
        "FI_ALLREDUCE_FUSION_MAX_SIZE_MB",
        "vLLM's table of sizes",
        "",
    )
    yield peer_access(scene)
    yield measured_fusion(scene)


def _symmetric_memory(scene: Scene) -> Iterator[Gate]:
    yield is_installed(scene, "sglang", "vllm")
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
    yield multicast(scene)
    yield peer_access(scene)


def _custom_allreduce(scene: Scene) -> Iterator[Gate]:
    yield is_installed(scene, "sglang", "vllm")
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
        "flashinfer 0.7.0 has another kernel for this: flashinfer-pcie-allreduce",
    )
    yield peer_access(scene)


def _pcie_allreduce(scene: Scene) -> Iterator[Gate]:
    yield is_installed(scene, "flashinfer-python")
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
            "flashinfer 0.7.0 (flashinfer#4393)",
        )
    yield from nvcc_floor(scene)
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
    yield peer_access(scene)


_CHAINS: dict[str, Callable[[Scene], Iterator[Gate]]] = {
    "flashinfer-allreduce-fusion": _allreduce_fusion,
    "torch-symm-mem": _symmetric_memory,
    "custom-allreduce": _custom_allreduce,
    "flashinfer-pcie-allreduce": _pcie_allreduce,
    "eagle3": eagle3,
}
FEATURES = tuple(_CHAINS)
