"""Failures that look alike are told apart by facts; changing one fact changes the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.diagnosis.cause import Cause, Certainty
from alula.diagnosis.diagnose import diagnose
from alula.diagnosis.facts import Facts
from failing_logs import failing, write

NO_MAJORS = "RuntimeError: No supported CUDA architectures found for major versions [{}]."
NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
INSUFFICIENT = "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"
PTX = "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."
COMMON_OPS = "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n{}"
CUDA_CHECK = "undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
NVRTC = "libnvrtc.so.12: cannot open shared object file: No such file or directory"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def known(**values: str) -> Facts:
    """Facts; a double underscore stands for a dot, a single one for a dash."""
    names = {name.replace("__", ".").replace("_", "-"): value for name, value in values.items()}
    return Facts({name: tuple(value.split()) for name, value in names.items()})


RTX_PRO = known(capability="12.0", capability__major="12")


def cause(
    folder: Path, phrase: str, facts: Facts, frame: str = "", phase: str = "capture"
) -> Cause:
    found = diagnose([write(folder, failing(phrase, frame, phase))], facts, exit_code=1).cause
    assert found is not None
    return found


def told(found: Cause) -> tuple[str, str, Certainty]:
    return found.ruling.failure_class, found.ruling.layer, found.certainty


def test_a_list_without_the_gpu_is_an_allow_list_and_one_with_it_an_old_nvcc(
    tmp_path: Path,
) -> None:
    facts = RTX_PRO.with_values({"flashinfer-python": ("0.6.4",), "nvcc": ("12.8.93",)})
    refused = cause(tmp_path, NO_MAJORS.format("9, 10"), facts)
    assert told(refused) == ("arch_gate", "allow-list", Certainty.CERTAIN)
    assert refused.ruling.owner == "flashinfer-python"
    listed = cause(tmp_path, NO_MAJORS.format("9, 10, 12"), facts)
    assert told(listed) == ("toolkit", "toolkit", Certainty.CERTAIN)
    new_nvcc = facts.with_values({"nvcc": ("13.0.88",)})
    assert told(cause(tmp_path, NO_MAJORS.format("12"), new_nvcc))[2] is Certainty.LIKELY


def test_a_toolkit_does_not_touch_the_allow_list(tmp_path: Path) -> None:
    facts = RTX_PRO.with_values({"flashinfer-python": ("0.6.4",), "nvcc": ("13.0.88",)})
    found = cause(tmp_path, NO_MAJORS.format("9, 10"), facts)
    assert told(found) == ("arch_gate", "allow-list", Certainty.CERTAIN)


def test_a_flashinfer_that_opened_the_list_is_no_longer_to_blame(tmp_path: Path) -> None:
    before = RTX_PRO.with_values({"flashinfer-python": ("0.6.16",)})
    after = RTX_PRO.with_values({"flashinfer-python": ("0.6.17",)})
    old, new = (cause(tmp_path, NO_MAJORS.format("9, 10"), facts) for facts in (before, after))
    assert (old.certainty, new.certainty) == (Certainty.CERTAIN, Certainty.LIKELY)
    assert "0.6.17 opens" in old.ruling.fix
    assert "upgrading FlashInfer is not the fix" in new.ruling.fix


def test_the_list_of_another_module_has_another_fix(tmp_path: Path) -> None:
    facts = RTX_PRO.with_values({"flashinfer-python": ("0.6.4",)})
    fusion, other = (
        cause(tmp_path, NO_MAJORS.format(majors), facts) for majors in ("9, 10", "10, 11")
    )
    assert told(fusion) == told(other) == ("arch_gate", "allow-list", Certainty.CERTAIN)
    assert (fusion.ruling.feature, other.ruling.feature) == ("flashinfer-allreduce-fusion", "")
    assert fusion.ruling.fix != other.ruling.fix


def test_a_list_of_twelve_on_another_gpu_is_an_allow_list(tmp_path: Path) -> None:
    hopper = known(capability="9.0", capability__major="9", flashinfer_python="0.6.4")
    assert told(cause(tmp_path, NO_MAJORS.format("12"), hopper))[:2] == ("arch_gate", "allow-list")


def test_a_warning_of_an_old_nvcc_does_not_hide_the_list_behind_it(tmp_path: Path) -> None:
    warning = "WARNING: Failed to get device capability: SM 12.x requires CUDA >= 12.9\n"
    facts = RTX_PRO.with_values({"flashinfer-python": ("0.6.14",), "nvcc": ("12.8",)})
    found = cause(tmp_path, warning + NO_MAJORS.format("9, 10"), facts)
    assert told(found)[:2] == ("arch_gate", "allow-list")


def test_a_key_error_of_another_table_is_not_the_symmetric_memory_gate(tmp_path: Path) -> None:
    gate = cause(tmp_path, "KeyError: 12", RTX_PRO, "symm-mem")
    assert told(gate) == ("arch_gate", "allow-list", Certainty.CERTAIN)
    assert gate.ruling.owner == "sglang"
    assert cause(tmp_path, "KeyError: 12", RTX_PRO, "tokenizer").certainty is Certainty.UNKNOWN
    ampere = known(capability="8.0", capability__major="8")
    assert cause(tmp_path, "KeyError: 12", ampere, "symm-mem").certainty is Certainty.LIKELY


def test_no_image_on_an_old_gpu_is_a_build_that_dropped_it(tmp_path: Path) -> None:
    volta = known(capability="7.0", torch__cuda="13.0")
    dropped = cause(tmp_path, NO_IMAGE, volta)
    assert told(dropped) == ("no_kernel_image", "device code", Certainty.CERTAIN)
    assert "12.6 or 12.8" in dropped.ruling.fix
    missing = cause(tmp_path, NO_IMAGE, known(capability="12.1", torch__cuda="13.0"))
    assert missing.certainty is Certainty.LIKELY
    assert missing.ruling.fix != dropped.ruling.fix


def test_a_missing_symbol_is_told_from_a_missing_library_in_the_same_block(tmp_path: Path) -> None:
    symbol = cause(tmp_path, COMMON_OPS.format(CUDA_CHECK), known(torch="2.10.0"))
    assert (symbol.name, symbol.certainty) == ("undefined-symbol-torch", Certainty.CERTAIN)
    assert symbol.ruling.owner == "sgl-kernel"
    library = cause(tmp_path, COMMON_OPS.format(NVRTC), known(torch__cuda__major="13"))
    assert (library.name, library.certainty) == ("missing-libnvrtc", Certainty.CERTAIN)
    paired = cause(tmp_path, COMMON_OPS.format(CUDA_CHECK), known(torch="2.9.1"))
    assert paired.certainty is Certainty.LIKELY


@pytest.mark.parametrize(("library", "torch_cuda"), [("13", "12.8"), ("12", "13.0")])
def test_the_two_runtime_libraries_have_opposite_fixes(
    library: str, torch_cuda: str, tmp_path: Path
) -> None:
    phrase = f"ImportError: libcudart.so.{library}: cannot open shared object file: No such file"
    found = cause(tmp_path, phrase, known(torch__cuda=torch_cuda))
    assert (found.name, found.certainty) == (f"missing-libcudart-{library}", Certainty.CERTAIN)
    other = cause(tmp_path, phrase, known(torch__cuda=f"{library}.0"))
    assert other.certainty is Certainty.LIKELY


def test_a_driver_that_is_new_enough_points_at_the_jit_cache(tmp_path: Path) -> None:
    old = known(driver__cuda__major="12", torch__cuda__major="13")
    assert told(cause(tmp_path, INSUFFICIENT, old)) == ("driver", "driver", Certainty.CERTAIN)
    new = known(driver__cuda__major="13", torch__cuda__major="13")
    assert told(cause(tmp_path, INSUFFICIENT, new, "flashinfer"))[:2] == ("jit_compile", "toolkit")


def test_ptx_from_a_wheel_wants_a_driver_and_ptx_made_here_an_older_toolkit(tmp_path: Path) -> None:
    facts = known(driver__cuda="12.8", torch__cuda="12.9", nvcc="13.0")
    assert told(cause(tmp_path, PTX, facts)) == ("driver", "driver", Certainty.CERTAIN)
    here = cause(tmp_path, PTX, facts, "flashinfer")
    assert told(here) == ("toolkit", "toolkit", Certainty.CERTAIN)
    newer = facts.with_values({"driver.cuda": ("13.1",)})
    assert cause(tmp_path, PTX, newer).certainty is Certainty.LIKELY


def test_memory_that_was_not_idle_overrides_any_lack_of_memory(tmp_path: Path) -> None:
    busy = "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n"
    assert told(cause(tmp_path, OOM, Facts()))[0] == "oom_capture"
    assert told(cause(tmp_path, busy + OOM, Facts()))[:2] == ("leftover", "process")


def test_a_refused_collective_is_certain_with_its_setting_and_nccl(tmp_path: Path) -> None:
    phrase = (
        "node1:7:9 [3] NCCL WARN Error : no algorithm/protocol available for function AllGather"
    )
    facts = Facts({"nccl": ("2.27.5",), "setting.NCCL_ALGO": ("Tree",)})
    assert cause(tmp_path, phrase, facts).certainty is Certainty.CERTAIN
    assert cause(tmp_path, phrase, Facts({"nccl": ("2.27.5",)})).certainty is Certainty.LIKELY


def test_unlike_gpus_make_nothing_certain(tmp_path: Path) -> None:
    mixed = Facts({"capability.major": ("9", "12"), "flashinfer-python": ("0.6.4",)})
    assert cause(tmp_path, NO_MAJORS.format("9, 10"), mixed).certainty is Certainty.LIKELY
