"""Gates that are a line of source and no list: a version test, an `#if`, a test of topology."""

from __future__ import annotations

from dataclasses import dataclass

from alula.machine.environment import Distribution, Environment
from alula.machine.source import is_file


@dataclass(frozen=True, slots=True)
class TextGate:
    """A line of a package's files that is a gate and no list: a version test, an `#if`."""

    name: str
    package: str
    file: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """As an editor opens it: file:line."""
        return f"{self.file}:{self.line}"


_LINES = (
    (
        "nvcc-12.9",
        "flashinfer-python",
        "flashinfer/compilation_context.py",
        "requires CUDA >= 12.9",
    ),
    (
        "empty-kernel",
        "flashinfer-python",
        "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh",
        "(__CUDA_ARCH__ < 1200)",
    ),
    (
        "full-nvlink",
        "flashinfer-python",
        "flashinfer/data/include/flashinfer/comm/vllm_custom_all_reduce.cuh",
        "else if (full_nvlink_)",
    ),
    ("pcie-ipc", "flashinfer-python", "flashinfer/jit/comm.py", "def gen_pcie_ipc_comm_module"),
    (
        "two-pcie-gpus",
        "sglang",
        "sglang/srt/distributed/device_communicators/custom_all_reduce.py",
        "if world_size > 2 and not full_nvlink",
    ),
    (
        "two-pcie-gpus",
        "vllm",
        "vllm/distributed/device_communicators/custom_all_reduce.py",
        "if world_size > 2 and not fully_connected",
    ),
    (
        "multicast",
        "sglang",
        "sglang/srt/distributed/device_communicators/torch_symm_mem.py",
        "handle.multicast_ptr == 0",
    ),
    (
        "multicast",
        "vllm",
        "vllm/distributed/device_communicators/symm_mem.py",
        "handle.multicast_ptr == 0",
    ),
    ("pcie-ipc", "vllm", "vllm/envs.py", "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC"),
    ("pcie-ipc", "sglang", "sglang/srt/server_args.py", "pcie_ipc"),
)
"""Name, package, file and text. A text that is gone is a gate that is gone, or was moved."""


def files_with_gates(package: str) -> frozenset[str]:
    """The files of a package that are looked into."""
    return frozenset(file for _, owner, file, _ in _LINES if owner == package)


def find_text_gates(environment: Environment) -> tuple[TextGate, ...]:
    """The lines of `_LINES` that the installed packages hold."""
    found: list[TextGate] = []
    for name, package, file, text in _LINES:
        distribution = environment.find(package)
        if distribution is not None and (line := _line_of(distribution, file, text)):
            found.append(TextGate(name, package, file, line, text))
    return tuple(found)


def _line_of(distribution: Distribution, file: str, text: str) -> int:
    """The line that holds a text, 0 where there is none."""
    for root in distribution.roots:
        for path in (root / file, root / "python" / file):
            if not is_file(path):
                continue
            try:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            return next((n for n, line in enumerate(lines, start=1) if text in line), 0)
    return 0
