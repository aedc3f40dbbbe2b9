"""The saved report of a real H200 says what `nvidia-smi -q` and `topo -m` said there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from alula.diagnosis.doctor import Question, examine
from alula.machine.whatif import WhatIf

REPORT = Path(__file__).parents[2] / "docs" / "examples" / "h200.json"
MIB = 1 << 20


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(REPORT.read_text("utf-8"))
    return content


def test_the_gpu_is_what_nvidia_smi_says(report: dict[str, Any]) -> None:
    (gpu,) = report["machine"]["gpus"]
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["memory_bytes"] == 143_771 * MIB
    assert gpu["bar1_bytes"] == 262_144 * MIB
    assert gpu["pci"] == "00000000:00:06.0"
    assert gpu["pcie"] == {
        "generation": 5,
        "width": 16,
        "generation_at_most": 5,
        "width_at_most": 16,
    }
    assert report["machine"]["driver"]["version"] == "580.159.04"
    assert report["machine"]["driver"]["cuda"] == "13.0"


def test_one_gpu_has_no_links_and_two_probes_say_why_they_did_not_run(
    report: dict[str, Any],
) -> None:
    assert report["machine"]["links"] == []
    endings = {probe["name"]: probe["ending"] for probe in report["probes"]}
    assert endings == {
        "import": "passed",
        "kernel": "passed",
        "p2p": "not run",
        "collective": "not run",
    }


def test_nothing_that_runs_there_is_called_closed(report: dict[str, Any]) -> None:
    """cuFFT has one image, a stub for 7.5, and packs its kernels in its own way."""
    assert not [gate for gate in report["gates"] if gate["layer"] == "device code"]


def test_the_machine_can_be_asked_about_again(report: dict[str, Any]) -> None:
    question = Question(features=(), environment=None, what_if=WhatIf(str(REPORT), (), None, None),
                        probes=(), force=False, kernels=False)  # fmt: skip
    again = examine(question, {}, None, lambda _: None).to_json()
    assert again["machine"]["gpus"][0]["name"] == report["machine"]["gpus"][0]["name"]
    assert again["machine"]["driver"]["version"] == report["machine"]["driver"]["version"]
