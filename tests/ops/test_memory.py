"""Whoever runs out of memory is told for what, how much there was, and what to lower."""

from __future__ import annotations

import errno

import pytest
import torch

from alula.errors import ResourceError, ShortageError, UsageError
from alula.ops.memory import memory_for

CUDA_SAID = (
    "CUDA out of memory. Tried to allocate 846.00 MiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 59.12 MiB is free. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.  See documentation"
)
CPU_SAID = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """One with 3 of 16 GiB free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (3 << 30, 16 << 30))
    return torch.device("cuda", 1)


def test_a_gpu_says_what_was_asked_and_is_free(on_gpu: torch.device) -> None:
    with (
        pytest.raises(ResourceError) as caught,
        memory_for("a cache", on_gpu, "lower --this", note="it is to hold 7 tokens"),
    ):
        raise torch.OutOfMemoryError(CUDA_SAID)
    assert str(caught.value) == (
        "no memory for a cache: it is to hold 7 tokens; 846.00 MiB more were asked for; "
        "3.00 of 16.00 GiB are free on cuda:1"
    )
    assert caught.value.fix == "lower --this"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 8.00 GiB"), "Unable to allocate 8.00 GiB"),
        (RuntimeError(CPU_SAID), "9 bytes more were asked for"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (RuntimeError("CUDA error: out of memory\nhints"), "CUDA error: out of memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "Triton Error [CUDA]: out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
        ),
    ],
)
def test_whatever_runs_out_of_memory_says_so_in_its_own_way(error: Exception, said: str) -> None:
    with pytest.raises(ResourceError) as caught, memory_for("x", torch.device("cpu"), "y"):
        raise error
    assert caught.value.why == said


def test_the_end_of_a_capture_does_not_hide_what_broke_it() -> None:
    with pytest.raises(ShortageError) as caught, memory_for("x", torch.device("cpu"), "y"):
        try:
            raise torch.OutOfMemoryError(CUDA_SAID)
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error")
    assert caught.value.why == "846.00 MiB more were asked for"


def test_who_is_nearest_names_it() -> None:
    inner = memory_for("the inner", torch.device("cpu"), "lower that")
    with (
        pytest.raises(ShortageError, match="no memory for the inner") as caught,
        memory_for("the outer", torch.device("cpu"), "lower this"),
        inner,
    ):
        raise MemoryError
    assert caught.value.fix == "lower that"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access"),
        OSError(errno.ENOSPC, "No space left on device"),
        UsageError("a", "b", "c"),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, memory_for("x", torch.device("cpu"), "y"):
        raise error
    assert caught.value is error
