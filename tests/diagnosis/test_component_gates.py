"""What stands in the way of components as such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from alula.diagnosis.component_gates import component_gates
from alula.machine.environment import environment_at
from alula.machine.facts import Driver
from alula.machine.gate import Gate, Layer
from alula.machine.software import read_software
from alula.machine.whatif import WhatIf, named, resolve
from elf_files import write_container, write_image, write_library
from engines_environment import put_toolkit
from environments import install, make_environment


def gates(prefix: Path, gpu: str = "12.0", driver: str = "590.48.01") -> list[Gate]:
    machine = resolve(WhatIf(gpus=[gpu], driver=driver), lambda: named("1x-h200"))
    return list(component_gates(machine, read_software(environment_at(prefix), {"PATH": ""})))


def of_layer(found: list[Gate], layer: Layer) -> list[Gate]:
    return [gate for gate in found if gate.layer is layer]


def library(*images: bytes) -> bytes:
    return write_library(write_container(*images))


def test_no_image_for_this_gpu(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "sgl-kernel", "0.3.21", {"sgl_kernel/ops.so": library(write_image(120, "a"))})
    assert of_layer(gates(tmp_path, "12.0"), Layer.DEVICE_CODE) == []
    (gate,) = of_layer(gates(tmp_path, "12.1"), Layer.DEVICE_CODE)
    assert gate.component == "sgl-kernel 0.3.21"
    assert gate.observed == "sm_120a in all 1"


def test_ptx_newer_than_the_driver_is_the_drivers(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    ptx = library(write_image(80, kind=1, isa=(8, 8)))
    install(site, "vllm", "0.16.0", {"vllm/fa2.so": ptx})
    assert gates(tmp_path, driver="590.48.01") == []
    (gate,) = of_layer(gates(tmp_path, driver="570.26"), Layer.DRIVER)
    assert "the driver is of CUDA 12.8" in gate.observed
    assert gate.opened_in == "a driver that knows this PTX"


def test_a_driver_too_old_for_torch(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.10.0+cu130")
    (gate,) = of_layer(gates(tmp_path, driver="570.26"), Layer.DRIVER)
    assert gate.predicate == "driver 580.65.06 or newer for cu130"
    assert of_layer(gates(tmp_path, driver="580.82.07"), Layer.DRIVER) == []


@pytest.mark.parametrize(
    ("gpu", "driver", "count"),
    [
        ("12.0", "550.54.14", 1),
        ("12.0", "570.26", 0),
        ("9.0", "550.54.14", 0),
        ("8.0", "440.33", 1),
    ],
)
def test_a_driver_older_than_the_gpu(tmp_path: Path, gpu: str, driver: str, count: int) -> None:
    make_environment(tmp_path)
    assert len(of_layer(gates(tmp_path, gpu, driver), Layer.DRIVER)) == count


def test_blackwell_needs_the_open_kernel_module(tmp_path: Path) -> None:
    make_environment(tmp_path)
    software = read_software(environment_at(tmp_path), {"PATH": ""})
    driver = Driver("590.48.01", "13.1", module="closed")
    for name, count in (("1x-rtx-pro-6000", 1), ("1x-h100", 0)):
        machine = replace(named(name), driver=driver)
        assert len(component_gates(machine, software)) == count


def test_a_compatibility_package_brings_a_newer_cuda_to_an_older_driver(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.10.0+cu130")
    software = read_software(environment_at(tmp_path), {"PATH": ""})
    for cuda, count in (("12.4", 1), ("13.0", 0)):
        machine = replace(named("1x-h200"), driver=Driver("550.54.15", cuda))
        assert len(of_layer(list(component_gates(machine, software)), Layer.DRIVER)) == count


def test_a_driver_of_an_unknown_scheme_is_judged_by_nothing(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.10.0+cu130")
    machine = replace(named("1x-h200"), driver=Driver("vGPU 18.1"))
    assert component_gates(machine, read_software(environment_at(tmp_path), {"PATH": ""})) == ()


def test_pins_that_are_not_kept(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    requires = [
        "torch==2.9.1",
        "flashinfer_python==0.6.3",
        "absent>=1",
        "nightly>=2.10",
        "extra-only; extra == 'dev'",
        "future; python_version > '3.13'",
        "not a requirement at all!",
    ]
    install(site, "sglang", "0.5.9", requires=requires)
    install(site, "torch", "2.9.1+cu130")
    install(site, "flashinfer-python", "0.6.4")
    install(site, "nightly", "2.11.0.dev20260219+cu130")
    found = of_layer(gates(tmp_path), Layer.VERSION_CHECK)
    assert [(gate.predicate, gate.observed) for gate in found] == [
        ("flashinfer-python==0.6.3", "flashinfer-python 0.6.4"),
        ("1 package that it requires", "not installed: absent"),
    ]


@pytest.mark.parametrize(("cubin", "count"), [("0.6.13", 1), ("0.6.14", 0)])
def test_flashinfers_parts_are_of_one_version(tmp_path: Path, cubin: str, count: int) -> None:
    site = make_environment(tmp_path)
    install(site, "flashinfer-python", "0.6.14")
    install(site, "flashinfer-jit-cache", "0.6.14+cu130")
    install(site, "flashinfer-cubin", cubin)
    assert len(of_layer(gates(tmp_path), Layer.VERSION_CHECK)) == count


def test_a_toolkit_that_does_not_know_the_gpu(tmp_path: Path) -> None:
    make_environment(tmp_path)
    put_toolkit(tmp_path, "12.8.93")
    assert of_layer(gates(tmp_path, "12.0"), Layer.TOOLKIT) == []
    found = of_layer(gates(tmp_path, "12.1"), Layer.TOOLKIT)
    assert {gate.component for gate in found} == {"torch extensions", "FlashInfer", "DeepGEMM"}
    assert found[0].predicate == "ptxas knows sm_121"


def test_a_missing_soname_names_the_library_that_asks(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    asking = write_library(write_container(write_image(120)), needed=["libcudart.so.99"])
    install(site, "sgl-kernel", "0.3.21", {"sgl_kernel/ops.so": asking})
    (gate,) = of_layer(gates(tmp_path), Layer.LINKAGE)
    assert gate.predicate == "libcudart.so.99 to be found"
    assert gate.feature == "sgl_kernel/ops.so"
