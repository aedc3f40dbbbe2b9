"""Each phrase of public bug reports gives one cause, of the right class and layer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from alula.diagnosis.diagnose import Certainty, Diagnosis, diagnose
from failing_logs import failing, write


class Row(NamedTuple):
    phrase: str
    failure_class: str
    layer: str
    signature: str
    frame: str = ""
    phase: str = "distributed"


ROWS = [
    Row("RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
        "arch_gate", "allow-list", "flashinfer-majors", "flashinfer", "capture"),
    Row("Exception: Capture cuda graph failed: No supported CUDA architectures found for major versions [9, 10].",
        "arch_gate", "allow-list", "flashinfer-majors", "", "capture"),
    Row("RuntimeError: No supported CUDA architectures found for major versions [12].",
        "toolkit", "toolkit", "flashinfer-majors", "", "capture"),
    Row("KeyError: 12", "arch_gate", "allow-list", "symm-mem-key", "symm-mem"),
    Row("RuntimeError: Error in function 'TllmGenFmhaRunner' at fmhaRunner.cuh:37: Unsupported architecture",
        "arch_gate", "C++ check", "trtllm-gen"),
    Row("RuntimeError: peer access is not supported between these two devices",
        "p2p_platform", "topology", "peer-access"),
    Row("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        "toolkit", "toolkit", "ptxas-target"),
    Row("nvcc fatal   : Unsupported gpu architecture 'compute_90a'",
        "toolkit", "toolkit", "nvcc-target"),
    Row("WARNING: Failed to get device capability: SM 12.x requires CUDA >= 12.9",
        "toolkit", "toolkit", "flashinfer-old-nvcc"),
    Row("RuntimeError: FlashInfer requires GPUs with sm75 or higher",
        "toolkit", "toolkit", "flashinfer-sm75"),
    Row("RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "driver", "driver", "driver-insufficient"),
    Row("RuntimeError: CUDA error: cudaErrorInsufficientDriver (35)",
        "driver", "driver", "driver-insufficient"),
    Row("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "driver", "driver", "driver-old"),
    Row("RuntimeError: Error 802: system not yet initialized", "driver", "driver", "fabric-manager"),
    Row("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "driver", "driver", "ptx-too-new"),
    Row("ImportError: sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb",
        "abi", "linkage", "undefined-symbol-torch"),
    Row("ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!",
        "abi", "linkage", "sgl-kernel-import"),
    Row("ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
        "- undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
        "abi", "linkage", "undefined-symbol-torch"),
    Row("ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
        "- ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory",
        "abi", "linkage", "missing-libnvrtc"),
    Row("ImportError: common_ops.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_",
        "abi", "linkage", "undefined-symbol-torch"),
    Row("ImportError: libtorch_cuda.so: undefined symbol: ncclAlltoAll",
        "abi", "linkage", "undefined-symbol-nccl"),
    Row("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
        "abi", "linkage", "missing-libcudart-13"),
    Row("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "abi", "linkage", "missing-libcudart-12"),
    Row("RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14).",
        "abi", "version check", "flashinfer-trio"),
    Row("error: sgl-kernel has inconsistent version: expected '0.3.18.post2+cu130', but metadata has '0.3.18.post2'",
        "abi", "version check", "wheel-renamed"),
    Row("ERROR: torch 2.11.0+cu128 depends on cuda-bindings<13 and >=12.9.4",
        "abi", "version check", "cuda-bindings-conflict"),
    Row("ERROR: HTTP error 404 while getting https://example.org/vllm-0.16.0+cu131-cp312-abi3-linux_x86_64.whl",
        "abi", "version check", "wheel-not-found"),
    Row("RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "no_kernel_image", "device code", "no-kernel-image"),
    Row("UserWarning: GPU with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
        "no_kernel_image", "device code", "torch-capability"),
    Row("RuntimeError: Ninja build failed. Ninja output:", "jit_compile", "toolkit", "ninja-failed"),
    Row("subprocess.CalledProcessError: Command '['ninja', '-v', '-C', '/tmp/x']' returned non-zero exit status 1.",
        "jit_compile", "toolkit", "ninja-failed"),
    Row("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "jit_compile", "toolkit", "ninja-missing"),
    Row("sampling.cuh:20:10: fatal error: curand_kernel.h: No such file or directory\n"
        "RuntimeError: Ninja build failed. Ninja output:", "jit_compile", "toolkit", "header-missing"),
    Row("sh: line 1: 4242 Killed   cicc --c++17\nRuntimeError: Ninja build failed.",
        "host_oom", "memory", "compiler-killed"),
    Row("node1:77:91 [3] NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8.",
        "nccl_error", "setting", "nccl-no-algorithm"),
    Row("node1:77:91 [3] NCCL WARN No algorithm/protocol nor symKernelId available for function Broadcast. NCCL_ALGO was set to allreduce:tree.",
        "nccl_error", "setting", "nccl-no-algorithm"),
    Row("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
        "nccl_error", "setting", "nccl-invalid-usage"),
    Row("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "nccl_error", "setting", "nccl-cuda-error"),
    Row("node1:77:91 [3] NCCL WARN Failed to CUDA calloc 10485760 bytes\nRuntimeError: NCCL error: unhandled cuda error",
        "nccl_error", "memory", "nccl-calloc"),
    Row("[rank3]:[E211 10:22:33.123456789 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE",
        "nccl_timeout", "process", "nccl-watchdog"),
    Row("INFO 02-11 10:00:22 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
        "hang", "process", "shm-broadcast"),
    Row("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "hang", "process", "sglang-watchdog"),
    Row("Exception: Capture cuda graph failed: a reason nobody has seen",
        "graph_capture", "setting", "graph-capture", "", "capture"),
    Row("RuntimeError: CUDA error: operation not permitted on an event last recorded in a capturing stream",
        "graph_capture", "setting", "graph-event", "", "capture"),
    Row("RuntimeError: CUDA error: operation failed due to a previous error during capture",
        "graph_capture", "setting", "graph-previous-error", "", "capture"),
    Row("RuntimeError: invalid argument", "graph_capture", "setting", "graph-buffers", "buffers", "capture"),
    Row("AssertionError: forward_mqa: B=256 exceeds CG capture max 128",
        "graph_capture", "setting", "graph-maximum", "", "capture"),
    Row("torch.AcceleratorError: CUDA error: cudaErrorIllegalAddress",
        "graph_replay", "memory", "illegal-access", "", "capture"),
    Row("RuntimeError: CUDA error: an illegal memory access was encountered",
        "graph_replay", "memory", "illegal-access", "", "capture"),
    Row("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "oom_load", "memory", "cuda-oom", "", "weights"),
    Row("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "oom_kv", "memory", "cuda-oom", "", "kv"),
    Row("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "oom_capture", "memory", "cuda-oom", "", "capture"),
    Row("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20 MiB.",
        "oom_capture", "memory", "cuda-oom"),
    Row("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "oom_kv", "memory", "kv-blocks"),
    Row("INFO 02-11 10:00:22 [gpu_worker.py:298] Available KV cache memory: -2.77 GiB",
        "oom_kv", "memory", "kv-negative"),
    Row("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "oom_kv", "memory", "sglang-fraction"),
    Row("ValueError: Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired GPU memory utilization",
        "leftover", "process", "free-memory"),
    Row("subprocess failed. Exit code: -9", "host_oom", "memory", "killed-child"),
    Row("AssertionError: Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend",
        "assertion", "setting", "moe-a2a-runner"),
    Row("AssertionError: m.max_query_len <= self.reorder_batch_threshold",
        "assertion", "setting", "mla-query-length"),
    Row("    assert K % 4 == 0\nAssertionError", "assertion", "setting", "assert-k-4"),
    Row("KeyError: 'model.layers.0.mlp.gate_up_proj.weight'", "assertion", "setting", "weight-name"),
    Row("OSError: [Errno 98] Address already in use", "port", "process", "port-in-use"),
    Row("DistNetworkError: The server socket has failed to listen (code: -98, name: EADDRINUSE)",
        "port", "process", "port-in-use"),
]  # fmt: skip


def _found(diagnosis: Diagnosis) -> tuple[str, str, str]:
    assert diagnosis.cause is not None
    ruling = diagnosis.cause.ruling
    return ruling.failure_class, ruling.layer, diagnosis.cause.name


@pytest.mark.parametrize("row", ROWS, ids=[f"{n}-{row.signature}" for n, row in enumerate(ROWS)])
def test_a_reported_phrase_gives_its_cause(row: Row, tmp_path: Path) -> None:
    log = write(tmp_path, failing(row.phrase, row.frame, row.phase))
    diagnosis = diagnose([log], exit_code=1)
    assert _found(diagnosis) == (row.failure_class, row.layer, row.signature)
    assert diagnosis.cause is not None
    assert diagnosis.cause.certainty is Certainty.LIKELY  # a phrase alone decides nothing
    assert diagnosis.cause.ruling.fix
    assert diagnosis.cause.ruling.refuted_by
