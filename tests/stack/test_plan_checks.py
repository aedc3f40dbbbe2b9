"""Every check that no resolver makes finds what it is for, and passes where there is nothing."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from alula.machine.facts import Machine
from alula.machine.toolkits import Toolkit
from alula.machine.whatif import WhatIf, resolve
from alula.stack.catalog import Metadata, Target
from alula.stack.checks import run_checks
from alula.stack.findings import Finding, Scene, Verdict
from alula.stack.indexes import Index
from alula.stack.listing import read_listing
from alula.stack.picture import Chosen, Picture
from alula.stack.reading import Page
from alula.stack.risks import risks
from alula.stack.wheel_facts import Contents, read_contents
from elf_files import write_container, write_image, write_library
from loopback_index import make_wheel

TAG = "cp312-cp312-manylinux_2_28_x86_64"
SYMBOL = "_ZN3c104cuda4pickEi"


def chosen(
    name: str,
    version: str,
    files: Mapping[str, bytes] | None = None,
    requires: Sequence[str] = (),
    tag: str = TAG,
    looked: bool = True,
) -> Chosen:
    """A wheel of a set, its facts read from its bytes."""
    made = make_wheel(name, version, requires, files, tag)
    body = f'<a href="{made.filename}#sha256={made.sha256}">{made.filename}</a>'.encode()
    listing = read_listing(Index("own", "http://own/"), name, Page("http://own/", "read", body))
    (file,) = listing.files
    file = replace(file, size=len(made.data))
    archive = zipfile.ZipFile(io.BytesIO(made.data))
    contents: Contents | None = read_contents(name, made.filename, archive) if looked else None
    paths = {m.filename: m.CRC for m in archive.infolist() if ".dist-info/" not in m.filename}
    return Chosen(file, Metadata(version, tuple(requires), ()), contents, paths)


def library(*archs: str, **more: Sequence[str]) -> bytes:
    images = [write_image(int(arch.rstrip("af")), arch.lstrip("0123456789")) for arch in archs]
    return write_library(*([write_container(*images)] if images else []), **more)  # type: ignore[arg-type]


def machine(gpu: str = "12.0x8", driver: str = "590.48.01") -> Machine:
    return resolve(WhatIf(gpus=(gpu,), driver=driver), Machine)


def scene(*packages: Chosen, on: Machine | None = None, **more: object) -> Scene:
    picture = Picture("3.12", {each.name: each for each in packages})
    made = Scene(picture, on or machine(), Target(glibc=(2, 35)), free_bytes=10**12)
    return replace(made, **more)  # type: ignore[arg-type]


def of(check: str, given: Scene) -> list[Finding]:
    return [finding for finding in run_checks(given) if finding.check == check]


def verdicts(check: str, given: Scene) -> set[Verdict]:
    return {finding.verdict for finding in of(check, given)}


def torch(cuda: str = "cu130", *archs: str) -> Chosen:
    files = {
        "torch/lib/libtorch_cuda.so": library(*(archs or ("90", "120"))),
        "torch/lib/libc10_cuda.so": library(defined=(SYMBOL,)),
        "torch/lib/libtorch.so": library(),
    }
    return chosen("torch", f"2.9.1+{cuda}", files)


def kernel(*needed: str, archs: Sequence[str] = ("120a",), undefined: Sequence[str] = ()) -> Chosen:
    common = library(*archs, needed=needed, undefined=undefined)
    return chosen("sgl-kernel", "0.3.21", {"sgl_kernel/sm100/common_ops.abi3.so": common})


def runtime(major: int) -> Chosen:
    name = "nvidia-cuda-runtime" if major == 13 else "nvidia-cuda-runtime-cu12"
    version = f"{major}.0.96" if major == 13 else "12.8.90"
    path = f"nvidia/cu{major}/lib/libcudart.so.{major}"
    return chosen(name, version, {path: library()}, tag="py3-none-manylinux2014_x86_64")


def test_a_sound_set_passes_every_check() -> None:
    given = scene(torch(), kernel("libcudart.so.13", undefined=(SYMBOL,)), runtime(13))
    bad = [each for each in run_checks(given) if each.verdict is Verdict.FAILED]
    assert bad == []
    unsure = {each.check for each in run_checks(given) if each.verdict is Verdict.NOT_CHECKED}
    assert unsure == {"start-up checks of the model"}


def test_a_kernel_for_another_cuda_fails() -> None:
    given = scene(torch(), kernel("libcudart.so.12"), runtime(13), runtime(12))
    (finding,) = (f for f in of("one CUDA", given) if "sgl-kernel" in f.words)
    assert finding.verdict is Verdict.FAILED
    assert "cu12" in finding.words and "torch 2.9.1+cu130" in finding.words


def test_another_cuda_that_nothing_loads_is_a_risk_alone() -> None:
    hook = {"hook.abi3.so": library(needed=("libcudart.so.12",))}
    given = scene(torch(), runtime(13), chosen("torch-memory-saver", "0.0.9", hook))
    assert verdicts("one CUDA", given) == {Verdict.PASSED}
    (risk,) = (each for each in risks(given) if "memory-saver" in each)
    assert risk.startswith("--enable-memory-saver will fail: libcudart.so.12 is in no package")


@pytest.mark.parametrize(
    ("driver", "verdict"),
    [("580.65.06", Verdict.PASSED), ("580", Verdict.PASSED), ("575.57.08", Verdict.FAILED)],
)
def test_the_floor_of_the_driver(driver: str, verdict: Verdict) -> None:
    given = scene(torch(), runtime(13), on=machine(driver=driver))
    assert verdicts("driver", given) == {verdict}


def test_a_library_without_an_image_for_a_gpu_fails() -> None:
    given = scene(torch(), runtime(13), kernel("libcudart.so.13", archs=("90a", "120a")))
    assert verdicts("an image for every GPU", given) == {Verdict.PASSED}
    on_121 = replace(given, machine=machine("12.1"))
    (finding,) = of("an image for every GPU", on_121)
    assert finding.verdict is Verdict.FAILED
    assert finding.about == ("sgl-kernel",)


def test_a_library_that_an_engine_does_without_is_a_risk() -> None:
    files = {"sgl_kernel/flash_ops.abi3.so": library("90a")}
    given = scene(torch(), runtime(13), chosen("sgl-kernel", "0.3.21", files))
    assert verdicts("an image for every GPU", given) == {Verdict.PASSED}
    assert any("FlashAttention 3" in risk for risk in risks(given))


def test_ptx_that_is_newer_than_the_driver_fails() -> None:
    ptx = write_library(write_container(write_image(80, kind=1, isa=(9, 1))))
    given = scene(torch(), runtime(13), chosen("sgl-kernel", "1", {"sgl_kernel/a.so": ptx}))
    assert verdicts("PTX within the driver", given) == {Verdict.PASSED}
    older = replace(given, machine=machine(driver="580.95.05"))
    (finding,) = of("PTX within the driver", older)
    assert finding.verdict is Verdict.FAILED


def test_a_soname_that_nothing_brings_fails() -> None:
    given = scene(torch(), kernel("libcudart.so.13", "libnuma.so.1"))
    (finding,) = of("sonames provided", given)
    assert finding.verdict is Verdict.FAILED
    assert "libcudart.so.13" in finding.words and "libnuma" not in finding.words
    assert "sgl-kernel asks the system for libnuma.so.1" in set(risks(given))


def test_a_symbol_that_torch_does_not_define_fails() -> None:
    given = scene(torch(), runtime(13), kernel("libcudart.so.13", undefined=("_ZN3c105otherEv",)))
    (finding,) = of("symbols of torch and NCCL", given)
    assert finding.verdict is Verdict.FAILED
    assert finding.about == ("sgl-kernel", "torch")
    assert "_ZN3c105otherEv" in finding.words


@pytest.mark.parametrize(("lacks", "failed"), [((SYMBOL,), True), ((), False)])
def test_facts_that_are_not_whole_say_only_what_they_know(
    lacks: tuple[str, ...], failed: bool
) -> None:
    partly = replace(torch(), contents=Contents("torch.whl", lacks=lacks, whole=False))
    given = scene(partly, runtime(13), kernel("libcudart.so.13", undefined=(SYMBOL,)))
    assert (Verdict.FAILED in verdicts("symbols of torch and NCCL", given)) is failed


def test_a_file_owned_twice_fails_unless_it_is_the_same() -> None:
    nccl = "nvidia/nccl/lib/libnccl.so.2"
    first = chosen("nvidia-nccl-cu12", "2.27.5", {nccl: library(), "nvidia/__init__.py": b"1"})
    other = chosen("nvidia-nccl-cu13", "2.27.7", {nccl: library("90"), "nvidia/__init__.py": b"2"})
    (finding,) = of("no file owned twice", scene(first, other))
    assert finding.verdict is Verdict.FAILED
    assert finding.words == f"nvidia-nccl-cu12 and nvidia-nccl-cu13 both bring {nccl} and 1 more"
    same = chosen("nvidia-nccl-cu13", "2.27.7", {nccl: library()})
    assert verdicts("no file owned twice", scene(first, same)) == {Verdict.PASSED}


def test_the_parts_of_flashinfer_are_of_one_version() -> None:
    parts = [
        chosen("flashinfer-python", "0.6.3", tag="py3-none-any"),
        chosen("flashinfer-jit-cache", "0.6.3+cu130"),
    ]
    assert verdicts("FlashInfer's parts equal", scene(*parts)) == {Verdict.PASSED}
    newer = chosen("flashinfer-cubin", "0.6.4", tag="py3-none-any")
    assert verdicts("FlashInfer's parts equal", scene(*parts, newer)) == {Verdict.FAILED}


def test_a_compiler_that_does_not_know_the_gpu_fails() -> None:
    text = b"Cuda compilation tools, release 12.4, V12.4.99\0sm_90a\0"
    triton = chosen("triton", "3.3.1", {"triton/backends/nvidia/bin/ptxas": text})
    (finding,) = of("compilers know the GPU", scene(triton))
    assert finding.verdict is Verdict.FAILED
    assert "sm_120a" in finding.words


def test_a_toolkit_of_which_nothing_was_read_is_not_checked() -> None:
    given = scene(torch(), runtime(13))
    picture = replace(given.picture, toolkit=Toolkit("wheels", "13.0"))
    assert verdicts("compilers know the GPU", replace(given, picture=picture)) == {
        Verdict.NOT_CHECKED
    }


def test_a_wheel_for_a_newer_glibc_or_another_python_fails() -> None:
    given = scene(chosen("x", "1", tag="cp313-cp313-manylinux_2_28_x86_64"))
    assert verdicts("glibc and Python tags", given) == {Verdict.FAILED}
    newer = scene(chosen("x", "1", tag="cp312-cp312-manylinux_2_39_x86_64"))
    assert verdicts("glibc and Python tags", newer) == {Verdict.FAILED}


def test_a_disk_that_is_too_small_fails() -> None:
    assert verdicts("disk space", scene(torch(), free_bytes=100)) == {Verdict.FAILED}


def test_what_nobody_has_looked_into_has_not_passed() -> None:
    unread = chosen("sgl-kernel", "0.3.21", {"a.so": library("120a")}, looked=False)
    given = scene(torch(), runtime(13), unread)
    for check in ("an image for every GPU", "sonames provided", "symbols of torch and NCCL"):
        assert verdicts(check, given) == {Verdict.NOT_CHECKED}


def test_a_machine_that_nobody_named_has_not_passed() -> None:
    given = scene(torch(), runtime(13), on=Machine())
    for check in ("driver", "an image for every GPU", "PTX within the driver"):
        assert verdicts(check, given) == {Verdict.NOT_CHECKED}
