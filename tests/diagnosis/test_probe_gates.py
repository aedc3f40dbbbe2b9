"""A probe that has run settles the gate it measures, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from alula.diagnosis.features import chain
from alula.diagnosis.probe_gates import import_gates, settled
from alula.machine.environment import environment_at
from alula.machine.facts import Link
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.probe_child import Ending, Outcome
from alula.machine.software import read_software
from alula.machine.whatif import named
from elf_files import write_container, write_image, write_library
from engines_environment import engines
from environments import install, make_environment

OPEN, CLOSED, UNKNOWN = GateVerdict.OPEN, GateVerdict.CLOSED, GateVerdict.UNKNOWN


def measured(probe: str) -> Gate:
    return Gate("it", "f", Layer.DRIVER, "p", "as read", UNKNOWN, "file", "1.0", probe)


def outcome(name: str, ending: Ending, parts: dict[str, str]) -> Outcome:
    return Outcome(name, ending, findings=("said",), parts=parts)


@pytest.mark.parametrize(
    ("probe", "found", "verdict"),
    [
        ("p2p", outcome("p2p", Ending.PASSED, {"GPU 0 to 1": "", "GPU 1 to 0": ""}), OPEN),
        ("p2p", outcome("p2p", Ending.FAILED, {"GPU 0 to 1": "", "GPU 1 to 0": "bad"}), CLOSED),
        ("p2p", outcome("p2p", Ending.PASSED, {"GPU 0 to 1": "through the host"}), CLOSED),
        ("p2p", outcome("p2p", Ending.HUNG, {}), CLOSED),
        ("p2p", outcome("p2p", Ending.NOT_RUN, {}), UNKNOWN),
        ("p2p", outcome("kernel", Ending.FAILED, {}), UNKNOWN),
        ("import torch", outcome("import", Ending.PASSED, {"torch": ""}), OPEN),
        ("import torch", outcome("import", Ending.FAILED, {"torch": "", "vllm": "bad"}), OPEN),
        ("import vllm", outcome("import", Ending.FAILED, {"torch": "", "vllm": "bad"}), CLOSED),
        ("import vllm", outcome("import", Ending.HUNG, {}), UNKNOWN),
        ("kernel x on 12.0", outcome("kernel", Ending.FAILED, {"x on 12.0 (GPU 1)": "b"}), CLOSED),
        ("kernel x on 12.0", outcome("kernel", Ending.FAILED, {"x on 9.0 (GPU 0)": "b"}), UNKNOWN),
        ("", outcome("p2p", Ending.PASSED, {"GPU 0 to 1": ""}), UNKNOWN),
    ],
)
def test_a_probe_settles_its_gate(probe: str, found: Outcome, verdict: GateVerdict) -> None:
    (gate,) = settled([measured(probe)], [found])
    assert gate.verdict is verdict
    assert "as read" in gate.observed
    assert (gate.opened_in == "") is (verdict is OPEN)


def test_what_is_read_of_peer_access_gives_way_to_what_is_tried(tmp_path: Path) -> None:
    engines(tmp_path)
    links = (Link(0, 1, "NODE", read="ok", write="ok"),)
    machine = replace(named("2x-rtx-pro-6000"), links=links)
    gates = chain("custom-allreduce", machine, read_software(environment_at(tmp_path), {}))
    assert gates[-1].verdict is OPEN
    failed = outcome("p2p", Ending.FAILED, {"GPU 0 to 1": "what was written is not there"})
    assert settled(gates, [failed])[-1].verdict is CLOSED
    assert "what was written" in settled(gates, [failed])[-1].observed
    assert settled(gates, [failed])[:-1] == gates[:-1]


def test_a_package_that_cannot_be_imported_stands_in_the_way() -> None:
    found = outcome("import", Ending.FAILED, {"torch": "", "vllm": "ImportError: libcudart.so.13"})
    (gate,) = import_gates([found, outcome("kernel", Ending.FAILED, {"torch": "bad"})])
    assert (gate.component, gate.layer, gate.verdict) == ("vllm", Layer.LINKAGE, CLOSED)
    assert "libcudart.so.13" in gate.observed


def test_ptx_for_a_driver_that_nobody_saw_is_no_open_gate(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    ptx = write_library(write_container(write_image(80, kind=1, isa=(8, 8))))
    install(site, "vllm", "0.16.0", {"vllm/_C.so": ptx})
    software = read_software(environment_at(tmp_path), {})
    gates = chain("eagle3", named("1x-rtx-pro-6000"), software)
    assert [each.verdict for each in gates if each.layer is Layer.DEVICE_CODE] == [UNKNOWN]
