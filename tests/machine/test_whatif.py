"""A machine that is asked about instead of seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alula.errors import UsageError
from alula.machine.facts import Driver, Gpu, Machine
from alula.machine.records import to_json
from alula.machine.whatif import WhatIf, named, resolve

SEEN = Machine(
    gpus=(Gpu(0, "NVIDIA H200", "9.0"),), driver=Driver("570.26", "12.8"), interconnect=""
)


def asked(**options: Any) -> Machine:
    return resolve(WhatIf(**options), lambda: SEEN)


def test_nothing_asked_is_what_is_seen() -> None:
    assert asked() == SEEN


def test_a_machine_by_name() -> None:
    machine = asked(machine="8x-rtx-pro-6000")
    assert [str(c) for c in machine.capabilities()] == ["12.0"]
    assert (len(machine.gpus), machine.interconnect, machine.nvswitch) == (8, "pcie", False)
    assert machine.assumed == ("8x-rtx-pro-6000",)


def test_a_model_alone_is_one_of_it() -> None:
    assert named("h100").gpus == named("1x-h100").gpus


@pytest.mark.parametrize(
    ("name", "switch"), [("8x-h200", True), ("4x-h200", None), ("8x-v100", None), ("1x-h200", None)]
)
def test_boards_of_eight_have_switches_since_the_a100(name: str, switch: bool | None) -> None:
    machine = asked(machine=name)
    assert machine.interconnect == ("" if name.startswith("1x") else "nvlink")
    assert machine.nvswitch is switch


def test_bridges_of_nvlink_are_no_switches() -> None:
    machine = asked(machine="8x-rtx-pro-6000", gpus=["8.6x2"], links="nvlink")
    assert (machine.interconnect, machine.nvswitch) == ("nvlink", None)


def test_each_option_overrides_its_own_piece() -> None:
    machine = asked(machine="8x-h200", gpus=["12.0x2", "9.0"], driver="590.48.01", links="pcie")
    assert [gpu.capability for gpu in machine.gpus] == ["12.0", "12.0", "9.0"]
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
    assert machine.driver.cuda_version() == (13, 1)
    assert machine.driver.isa() == (9, 1)
    assert (machine.interconnect, len(machine.links)) == ("pcie", 3)
    assert machine.assumed == ("8x-h200", "GPUs 12.0x2, 9.0", "driver 590.48.01", "links pcie")


def test_other_gpus_keep_nothing_of_the_links() -> None:
    machine = asked(machine="8x-h200", gpus=["12.0x8"])
    assert (machine.interconnect, machine.nvswitch, machine.links) == ("", None, ())


def test_a_driver_alone_leaves_this_machine() -> None:
    machine = asked(driver="590.48.01")
    assert machine.gpus == SEEN.gpus
    assert machine.driver.version == "590.48.01"


def test_a_saved_report_is_the_machine_it_was(tmp_path: Path) -> None:
    saved = tmp_path / "report.json"
    saved.write_text(json.dumps({"machine": to_json(named("4x-b200")), "of a later alula": 1}))
    machine = asked(machine=str(saved))
    assert machine.gpus == named("4x-b200").gpus
    assert machine.assumed == ("report report.json",)


@pytest.mark.parametrize(
    "report",
    [
        "",
        "[]",
        "{}",
        '{"machine": 3}',
        '{"machine": {"gpus": 3}}',
        '{"machine": {"gpus": [{"index": 0, "capability": "sm_120"}]}}',
        '{"machine": {"gpus": [{"index": "0"}]}}',
        '{"machine": {"gpus": [{}]}}',
        '{"machine": {"gpus": [{"index": 0}, {"index": 0}]}}',
        '{"machine": {"gpus": [{"index": 0}], "links": [{"first": 0, "second": 7}]}}',
        '{"machine": {"gpus": [{"index": 0, "power_watts": NaN}]}}',
        '{"machine": {"gpus": [{"index": 0, "memory_bytes": 1' + "0" * 400 + "}]}}",
        '{"machine": {"interconnect": "wireless"}}',
        '{"machine": {"driver": {"cuda": "x.y"}}}',
        '{"machine": {"driver": {"cuda": "13"}, "nvswitch": "yes"}}',
        '{"machine": ' + "[" * 100_000,
    ],
)
def test_a_report_that_is_none(tmp_path: Path, report: str) -> None:
    (tmp_path / "report.json").write_text(report)
    with pytest.raises(UsageError, match="is not a report"):
        named(str(tmp_path / "report.json"))


def test_a_report_comes_back_as_the_machine_that_it_was(tmp_path: Path) -> None:
    machine = asked(machine="8x-h200", driver="590.48.01")
    odd = replace(machine, driver=Driver("vGPU 18.1"))
    for saved in (machine, odd, Machine()):
        (tmp_path / "report.json").write_text(json.dumps({"machine": to_json(saved)}))
        read = named(str(tmp_path / "report.json"))
        assert replace(read, assumed=saved.assumed) == saved
    assert odd.driver.isa() is None


@pytest.mark.parametrize(
    "options",
    [
        {"machine": "8x-rtx-9999"},
        {"machine": "0x-h200"},
        {"machine": "9999x-h200"},
        {"machine": "nowhere.json"},
        {"machine": ""},
        {"machine": "a" * 5000},
        {"driver": ""},
        {"links": ""},
        {"gpus": ["120"]},
        {"gpus": ["12.0x0"]},
        {"gpus": ["12.0x2000"]},
        {"gpus": [""]},
        {"driver": "13.1"},
        {"links": "infiniband"},
    ],
)
def test_what_is_no_machine(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        asked(**options)
