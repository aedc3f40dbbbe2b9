"""Chains of gates, on the machine of the case and on those that change one thing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.diagnosis.features import FEATURES, chain
from alula.errors import UsageError
from alula.machine.environment import environment_at
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.software import Software, read_software
from alula.machine.whatif import named
from elf_files import write_container, write_image, write_library
from engines_environment import engines, put_toolkit
from environments import install

CASE = named("8x-rtx-pro-6000")
OPEN, CLOSED, UNKNOWN = GateVerdict.OPEN, GateVerdict.CLOSED, GateVerdict.UNKNOWN


def software(prefix: Path) -> Software:
    return read_software(environment_at(prefix), {})


def layers(gates: tuple[Gate, ...], verdict: GateVerdict) -> list[Layer]:
    return [gate.layer for gate in gates if gate.verdict is verdict]


def only(gates: tuple[Gate, ...], layer: Layer, owner: str = "") -> Gate:
    found = [g for g in gates if g.layer is layer and g.component.startswith(owner)]
    assert len(found) == 1, found
    return found[0]


def test_fusion_is_kept_out_by_two_lists_a_kernel_and_a_measurement(tmp_path: Path) -> None:
    engines(tmp_path)
    put_toolkit(tmp_path, "12.8.93")
    gates = chain("flashinfer-allreduce-fusion", CASE, software(tmp_path))
    first = only(gates, Layer.ALLOW_LIST, "flashinfer")
    assert (first.component, first.evidence) == (
        "flashinfer-python 0.6.4",
        "flashinfer/jit/comm.py:3",
    )
    assert first.opened_in == "flashinfer 0.6.17"
    second = only(gates, Layer.ALLOW_LIST, "sglang")
    assert second.evidence == "sglang/srt/layers/communicator.py:2"
    assert only(gates, Layer.TOOLKIT).verdict is CLOSED
    assert only(gates, Layer.TOOLKIT).opened_in == "CUDA toolkit 12.9"
    assert only(gates, Layer.CPP_CHECK).opened_in == "flashinfer 0.6.17 (flashinfer#3903)"
    assert only(gates, Layer.MEASURED).verdict is CLOSED


def test_flashinfer_0_6_17_opens_its_own_gates_and_no_other(tmp_path: Path) -> None:
    engines(tmp_path, "0.6.17")
    put_toolkit(tmp_path, "12.9.86")
    gates = chain("flashinfer-allreduce-fusion", CASE, software(tmp_path))
    assert only(gates, Layer.ALLOW_LIST, "flashinfer").verdict is OPEN
    assert only(gates, Layer.ALLOW_LIST, "flashinfer").opened_in == ""
    assert only(gates, Layer.CPP_CHECK).verdict is OPEN
    assert only(gates, Layer.TOOLKIT).verdict is OPEN
    assert layers(gates, CLOSED) == [Layer.ALLOW_LIST, Layer.MEASURED]


@pytest.mark.parametrize("version", ["12.8.93", "13.0.88"])
def test_the_toolkit_changes_nothing_about_the_list(tmp_path: Path, version: str) -> None:
    engines(tmp_path, "0.6.16")
    put_toolkit(tmp_path, version)
    gates = chain("flashinfer-allreduce-fusion", CASE, software(tmp_path))
    assert only(gates, Layer.ALLOW_LIST, "flashinfer").verdict is CLOSED
    assert only(gates, Layer.TOOLKIT).verdict is (CLOSED if version < "12.9" else OPEN)


def test_an_unread_toolkit_is_unknown(tmp_path: Path) -> None:
    engines(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("#!/bin/sh\nmodule load cuda; nvcc\n")
    gates = chain("flashinfer-allreduce-fusion", CASE, software(tmp_path))
    assert only(gates, Layer.TOOLKIT).verdict is UNKNOWN


def test_symmetric_memory_fails_at_a_list_and_at_the_hardware(tmp_path: Path) -> None:
    engines(tmp_path)
    gates = chain("torch-symm-mem", CASE, software(tmp_path))
    assert layers(gates, CLOSED) == [Layer.ALLOW_LIST, Layer.HARDWARE]
    assert only(gates, Layer.HARDWARE).opened_in == "no release: hardware"


def test_switches_open_the_hardware_and_not_the_list(tmp_path: Path) -> None:
    engines(tmp_path)
    machine = named("8x-h200")
    gates = chain("torch-symm-mem", machine, software(tmp_path))
    assert layers(gates, CLOSED) == []
    assert only(gates, Layer.HARDWARE).verdict is OPEN


@pytest.mark.parametrize(
    ("machine", "verdict"),
    [("8x-rtx-pro-6000", CLOSED), ("2x-rtx-pro-6000", OPEN), ("8x-h200", OPEN)],
)
def test_custom_allreduce_launches_nothing_between_many_pcie_gpus(
    tmp_path: Path, machine: str, verdict: GateVerdict
) -> None:
    engines(tmp_path)
    gates = chain("custom-allreduce", named(machine), software(tmp_path))
    assert only(gates, Layer.TOPOLOGY).verdict is verdict
    assert only(gates, Layer.CPP_CHECK).verdict is verdict


def test_the_pcie_allreduce_comes_with_0_6_18(tmp_path: Path) -> None:
    engines(tmp_path / "old", "0.6.17")
    engines(tmp_path / "new", "0.6.18")
    feature = "flashinfer-pcie-allreduce"
    old = chain(feature, CASE, software(tmp_path / "old"))
    new = chain(feature, CASE, software(tmp_path / "new"))
    assert [g.opened_in for g in old if g.verdict is CLOSED] == [
        "flashinfer 0.7.0 (flashinfer#4393)",
        "sglang#34528, open in Aug 2026",
    ]
    assert [g.component for g in new if g.verdict is CLOSED] == ["sglang 0.5.9"]


def test_eagle3_needs_its_kernels_and_not_one_attention_library(tmp_path: Path) -> None:
    site = engines(tmp_path)
    hopper = write_library(write_container(write_image(90, "a")))
    blackwell = write_library(write_container(write_image(120, "a")), needed=["libcudart.so.99"])
    files = {"sgl_kernel/flash_ops.so": hopper, "sgl_kernel/common_ops.so": blackwell}
    install(site, "sgl-kernel", "0.3.21", files)
    gates = chain("eagle3", CASE, software(tmp_path))
    assert only(gates, Layer.DEVICE_CODE).verdict is OPEN
    assert "flashinfer-python does without" in only(gates, Layer.DEVICE_CODE).observed
    assert only(gates, Layer.LINKAGE).verdict is CLOSED
    assert only(gates, Layer.LINKAGE).evidence.endswith("common_ops.so asks for libcudart.so.99")


@pytest.mark.parametrize("feature", FEATURES)
def test_every_chain_holds_without_packages_gpus_or_links(tmp_path: Path, feature: str) -> None:
    (tmp_path / "lib/python3.12/site-packages").mkdir(parents=True)
    empty = software(tmp_path)
    for machine in (named("1x-h200"), named("8x-rtx-pro-6000"), type(CASE)()):
        gates = chain(feature, machine, empty)
        assert gates[0].layer is Layer.VERSION_CHECK
        assert gates[0].verdict is CLOSED
        assert all(gate.predicate and gate.observed and gate.evidence for gate in gates)


def test_a_mixed_machine_has_a_gate_for_each_kind(tmp_path: Path) -> None:
    engines(tmp_path)
    from alula.machine.whatif import WhatIf, resolve

    mixed = resolve(WhatIf(gpus=["9.0", "12.0"]), lambda: CASE)
    gates = chain("torch-symm-mem", mixed, software(tmp_path))
    lists = [gate for gate in gates if gate.layer is Layer.ALLOW_LIST]
    assert [gate.verdict for gate in lists] == [OPEN, CLOSED]


def test_a_feature_that_is_none() -> None:
    with pytest.raises(UsageError, match="no feature 'fast'"):
        chain("fast", CASE, Software())
