"""An environment with the gates of SGLang, vLLM and FlashInfer, in source of our own."""

from __future__ import annotations

from pathlib import Path

from environments import install, make_environment

_COMM = """
def gen_trtllm_comm_module():
    return spec(flags(supported_major_versions={majors}))
{more}
"""
_GUARD = "#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900) && (__CUDA_ARCH__ < 1200)\n"
_NVCC = 'def normalize():\n    raise RuntimeError("SM 12.x requires CUDA >= 12.9")\n'
_CUSTOM = "    } else if (full_nvlink_) {\n"


def install_flashinfer(site: Path, version: str) -> None:
    """FlashInfer with the gates that its release has; majors and lines as the wheels show them."""
    parts = tuple(map(int, version.split(".")))
    comm = _COMM.format(
        majors="[9, 10, 12]" if parts >= (0, 6, 17) else "[9, 10]",
        more="def gen_pcie_ipc_comm_module(): ..." if parts >= (0, 6, 18) else "",
    )
    include = "flashinfer/data/include/flashinfer/comm"
    files = {
        "flashinfer/jit/comm.py": comm,
        "flashinfer/compilation_context.py": _NVCC if parts >= (0, 6, 7) else "",
        f"{include}/trtllm_allreduce.cuh": "" if parts >= (0, 6, 17) else _GUARD,
        f"{include}/vllm_custom_all_reduce.cuh": _CUSTOM,
    }
    install(site, "flashinfer-python", version, files)


def install_sglang(site: Path) -> None:
    """SGLang with its table, its own test before the fusion, and the topology tests."""
    folder = "sglang/srt/distributed/device_communicators"
    files = {
        f"{folder}/all_reduce_utils.py": "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES = {9: {}, 10: {}}\n",
        f"{folder}/torch_symm_mem.py": "if handle.multicast_ptr == 0:\n    disable()\n",
        f"{folder}/custom_all_reduce.py": "if world_size > 2 and not full_nvlink:\n    warn()\n",
        "sglang/srt/layers/communicator.py": (
            "def apply_flashinfer_allreduce_fusion(n):\n"
            "    return (_is_sm90_supported or _is_sm100_supported) and n > 0\n"
        ),
    }
    requires = ["flashinfer_python==0.6.3", "torch==2.9.1"]
    install(site, "sglang", "0.5.9", files, requires)


def engines(prefix: Path, flashinfer: str = "0.6.4") -> Path:
    """The environment of the case: SGLang 0.5.9 and a FlashInfer."""
    site = make_environment(prefix)
    install_flashinfer(site, flashinfer)
    install_sglang(site)
    return site


def put_toolkit(prefix: Path, version: str) -> None:
    """A toolkit within the environment, first on its PATH."""
    release = ".".join(version.split(".")[:2])
    text = f"Cuda compilation tools, release {release}, V{version}\0sm_120\0sm_120a\0"
    (prefix / "bin").mkdir(exist_ok=True)
    (prefix / "bin/ptxas").write_bytes(text.encode())
    (prefix / "bin/nvcc").write_bytes(b"")
