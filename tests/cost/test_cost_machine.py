"""Devices, links, tables: every number has a source, every name is refused or found."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from alula.cost.allreduce import LinkAllReduce, TableAllReduce
from alula.cost.described import described_machine
from alula.cost.machine import allreduce_named, devices, link_allreduce, tables
from alula.cost.units import parse_time
from alula.errors import UsageError
from alula.machine.facts import Gpu
from alula.machine.facts import Machine as Seen
from alula.machine.records import to_json
from alula.machine.whatif import WhatIf
from priced import machine


def _described(name: str | None, *gpus: str, links: str | None = None) -> tuple[str, int, str]:
    found = described_machine(WhatIf(name, gpus, None, links))
    return found.device.key, found.count, found.link


@pytest.mark.parametrize("name", ["devices", "links", "allreduce", "constants"])
def test_every_entry_has_its_source(name: str) -> None:
    data = tomllib.loads((files("alula.cost") / f"data/{name}.toml").read_text("utf-8"))
    assert data
    assert all(entry["source"] for entry in data.values())


def test_the_devices_that_were_promised() -> None:
    assert set(devices()) == {"rtx-pro-6000", "rtx-5090", "h100", "h200", "b200", "a100", "l40s"}


def test_machines_as_they_are_spelled() -> None:
    assert _described("8x-rtx-pro-6000") == ("rtx-pro-6000", 8, "pcie5")
    assert _described(None, "10.0x8") == ("b200", 8, "nvlink5")
    assert _described(None, "8.9", "8.9") == ("l40s", 2, "pcie4")
    assert _described("8x-rtx-5090", "12.0x4") == ("rtx-5090", 4, "pcie5")
    assert _described("8x-h100", "8.0") == ("a100", 1, "nvlink3")
    assert _described("8x-h100", links="pcie") == ("h100", 8, "pcie5")


@pytest.mark.parametrize(
    ("name", "gpus", "links", "named"),
    [
        ("8x-rtx-9090", (), None, "rtx-pro-6000"),
        (None, (), None, "rtx-pro-6000"),
        ("pro-6000", (), None, "8x-rtx-pro-6000"),
        ("0x-h100", (), None, "1x- to"),
        (None, ("12.0x8",), None, "rtx-5090"),
        (None, ("h100",), None, "12.0x8"),
        (None, ("7.0x8",), None, "a100"),
        (None, ("9.0", "8.0"), None, "one kind"),
        ("8x-rtx-pro-6000", (), "nvlink", "no NVLink"),
        ("8x-rtx-pro-6000", (), "infiniband", "pcie or nvlink"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_possible(
    name: str | None, gpus: tuple[str, ...], links: str | None, named: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        _described(name, *gpus, links=links)
    error = refusal.value
    assert named in f"{error.what} {error.why} {error.fix}"


def _seen(*names: str, interconnect: str = "pcie") -> Seen:
    gpus = tuple(Gpu(n, name=name, capability="12.0") for n, name in enumerate(names))
    hidden = Gpu(99, name="NVIDIA A100-SXM4-80GB", capability="8.0", visible=False)
    return Seen(gpus=(*gpus, hidden), interconnect=interconnect)


def test_without_options_it_is_the_machine_at_hand() -> None:
    seen = _seen(*["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"] * 4)
    found = described_machine(WhatIf(), lambda: seen)
    assert (found.device.key, found.count, found.link) == ("rtx-pro-6000", 4, "pcie5")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "no GPU"),
        (("NVIDIA GeForce RTX 3060",), "GeForce RTX 3060"),
        (("NVIDIA GeForce RTX 5090", "NVIDIA H200"), "one kind"),
    ],
)
def test_a_machine_without_figures_is_refused(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        described_machine(WhatIf(), lambda: _seen(*names))


def test_a_saved_report_is_a_machine(tmp_path: Path) -> None:
    seen = _seen(*["NVIDIA H200"] * 2, interconnect="nvlink")
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"machine": to_json(seen)}))
    assert _described(str(report)) == ("h200", 2, "nvlink4")


def test_a_driver_changes_nothing() -> None:
    assert described_machine(WhatIf("8x-h100", driver="590.48.01")) == machine("8x-h100")


def test_measured_tables_are_used_as_they_are() -> None:
    table = allreduce_named(machine(), 8, None)
    assert isinstance(table, TableAllReduce)
    assert table.seconds(14 * 1024) == pytest.approx(27e-6)
    assert table.seconds(56 * 1024) == pytest.approx(33e-6)
    assert table.seconds(224 * 1024) == pytest.approx(75.55e-6)
    assert table.seconds(100) == pytest.approx(27e-6)
    assert not table.covers(896 * 1024)


def test_a_machine_without_a_table_gets_the_least_of_its_link() -> None:
    assert isinstance(allreduce_named(machine("4x-h100"), 4, None), LinkAllReduce)
    slower = described_machine(WhatIf("8x-h200", links="pcie"))
    assert tables(slower, 8) == {}


@pytest.mark.parametrize(
    ("kib", "expected_us"), [(14, 4.7), (56, 6.2), (112, 8.2), (224, 12.2), (448, 20.3)]
)
def test_the_least_of_pcie5_for_8_ranks(kib: int, expected_us: float) -> None:
    """2 µs + 2 × 1.1 µs + 1.75 payloads at 50 GB/s: a two-shot without contention."""
    found_us = link_allreduce(machine(), 8).seconds(kib * 1024) * 1e6
    assert found_us == pytest.approx(expected_us, abs=0.06)


@pytest.mark.parametrize(
    "text", ["60", "60GB", "us", "6 0us", "-1us", "nanus", "1e999us", "1.2.3us", "1e300s", "2e-5ns"]
)
def test_a_time_needs_a_unit_of_time(text: str) -> None:
    with pytest.raises(UsageError, match="not understood"):
        parse_time(text, "--allreduce")


def test_times() -> None:
    for text in ("60us", "60µs", "0.06ms", "6e-5s", "60000 ns"):
        assert parse_time(text, "it") == pytest.approx(60e-6)


def test_an_unknown_table_lists_those_there_are() -> None:
    with pytest.raises(UsageError) as refusal:
        allreduce_named(machine(), 8, "nccl")
    assert "one-shot-rtx-pro-6000-x8" in refusal.value.why
