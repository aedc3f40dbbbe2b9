"""Logs in the manner of each server: the root is found among its own wrappers and prefixes."""

from __future__ import annotations

from pathlib import Path

from alula.diagnosis.answer import exit_code
from alula.diagnosis.cause import Diagnosis
from alula.diagnosis.diagnose import diagnose
from failing_logs import write

VLLM = """\
INFO 02-11 10:00:00 [api_server.py:1351] vLLM API server version 0.16.0
INFO 02-11 10:00:01 [utils.py:253] non-default args: {'model': 'm', 'tensor_parallel_size': 2}
(EngineCore_DP0 pid=77) INFO 02-11 10:00:09 [core.py:93] Initializing a V1 LLM engine (v0.16.0)
(Worker_TP1 pid=92) INFO 02-11 10:00:12 [pynccl.py:111] vLLM is using nccl==2.27.5
(Worker_TP0 pid=91) WARNING 02-11 10:00:13 [symm_mem.py:67] SymmMemCommunicator: Device \
capability 12.0 not supported, communicator is not available.
(Worker_TP0 pid=91) INFO 02-11 10:00:14 [gpu_model_runner.py:3900] Starting to load model m...
(Worker_TP1 pid=92) ERROR 02-11 10:02:00 [multiproc_executor.py:772] WorkerProc hit an exception.
(Worker_TP1 pid=92) ERROR 02-11 10:02:00 [multiproc_executor.py:772] Traceback (most recent call \
last):
(Worker_TP1 pid=92) ERROR 02-11 10:02:00 [multiproc_executor.py:772]   File \
"/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py", line 298, in load_model
(Worker_TP1 pid=92) ERROR 02-11 10:02:00 [multiproc_executor.py:772]     self.load()
(Worker_TP1 pid=92) ERROR 02-11 10:02:00 [multiproc_executor.py:772] torch.OutOfMemoryError: \
CUDA out of memory. Tried to allocate 112.00 MiB.
(EngineCore_DP0 pid=77) ERROR 02-11 10:02:01 [core.py:935] EngineCore failed to start.
(EngineCore_DP0 pid=77) ERROR 02-11 10:02:01 [core.py:935] Traceback (most recent call last):
(EngineCore_DP0 pid=77) ERROR 02-11 10:02:01 [core.py:935]   File \
"/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 926, in run_engine_core
(EngineCore_DP0 pid=77) ERROR 02-11 10:02:01 [core.py:935] Exception: WorkerProc initialization \
failed due to an exception in a background process. See stack trace for root cause.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed \
core proc(s): {}
"""
TENSORRT = """\
[02/11/2026-10:00:00] [TRT-LLM] [I] Starting TensorRT-LLM init.
[TensorRT-LLM][INFO] Set logger level to INFO
[TensorRT-LLM] TensorRT-LLM version: 1.2.0
[02/11/2026-10:01:00] [TRT-LLM] [RANK 1] [E] Failed to initialize executor on rank 1: Error in \
function 'TllmGenFmhaRunner': Unsupported architecture
[02/11/2026-10:01:00] [TRT-LLM] [RANK 1] [E] Traceback (most recent call last):
  File "/app/tensorrt_llm/executor/worker.py", line 311, in worker_main
RuntimeError: Error in function 'TllmGenFmhaRunner': Unsupported architecture

[02/11/2026-10:01:02] [TRT-LLM] [E] Executor worker returned error
mpirun noticed that process rank 1 with PID 0 on node n exited on signal 9 (Killed).
"""
ALULA = """\
smollm2 on cuda
error: the model does not fit
  why: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
  fix: choose a smaller model
"""


def root(diagnosis: Diagnosis) -> tuple[str, str, int]:
    cause = diagnosis.cause
    assert cause is not None
    assert cause.event is not None
    return cause.ruling.failure_class, cause.event.rank, cause.event.number


def test_vllm(tmp_path: Path) -> None:
    diagnosis = diagnose([write(tmp_path, VLLM)], exit_code=1)
    assert root(diagnosis) == ("oom_load", "TP1", 11)
    assert diagnosis.cause is not None
    assert diagnosis.cause.event is not None
    assert diagnosis.cause.event.frames[-1].endswith("gpu_worker.py:298")
    assert diagnosis.cascade[0].rank == "TP1"  # its own wrapper
    assert any("table of the engine" in note.text for note in diagnosis.notes)


def test_tensorrt_llm(tmp_path: Path) -> None:
    diagnosis = diagnose([write(tmp_path, TENSORRT)], exit_code=1)
    assert root(diagnosis) == ("arch_gate", "rank 1", 4)


def test_a_collective_that_tensorrt_llm_was_refused(tmp_path: Path) -> None:
    text = TENSORRT.replace(
        "Error in function 'TllmGenFmhaRunner': Unsupported architecture",
        "[TensorRT-LLM][ERROR] Assertion failed: Failed, NCCL error ncclCommunicator.cpp:90 "
        "'invalid usage (run with NCCL_DEBUG=WARN for details)'",
    )
    assert root(diagnose([write(tmp_path, text)], exit_code=1))[0] == "nccl_error"


def test_a_process_that_mpirun_saw_killed(tmp_path: Path) -> None:
    log = write(tmp_path, TENSORRT.splitlines()[0] + "\n" + TENSORRT.splitlines()[-1])
    assert root(diagnose([log], exit_code=1))[0] == "host_oom"


def test_alula(tmp_path: Path) -> None:
    diagnosis = diagnose([write(tmp_path, ALULA)], exit_code=7)
    assert root(diagnosis)[0] == "oom_runtime"


def test_a_refusal_of_alula_is_quoted(tmp_path: Path) -> None:
    text = "error: the model does not fit\n  why: it takes 12.3 GB\n  fix: choose a smaller one\n"
    diagnosis = diagnose([write(tmp_path, text)], exit_code=7)
    assert exit_code(diagnosis) == 4
    assert root(diagnosis) == ("unknown", "", 1)


def test_a_server_that_kills_itself_was_not_killed_by_the_kernel(tmp_path: Path) -> None:
    text = VLLM.replace("CUDA out of memory. Tried to allocate 112.00 MiB.", "the moon is full")
    diagnosis = diagnose([write(tmp_path, text.replace("OutOfMemory", "Lunar"))], exit_code=137)
    assert exit_code(diagnosis) == 4
    assert root(diagnosis) == ("unknown", "TP1", 11)


def test_a_degraded_mode_does_not_explain_an_end(tmp_path: Path) -> None:
    line = "WARNING 02-11 10:00:13 [x.py:1] Overriding cudagraph_mode from FULL to PIECEWISE\n"
    log = write(tmp_path, "".join(VLLM.splitlines(keepends=True)[:4]) + line)
    degraded = diagnose([log]).cause
    assert degraded is not None
    assert degraded.ruling.failure_class == "degraded_mode"
    assert exit_code(diagnose([log], exit_code=1)) == 4
