"""Files of measurements: points, all-reduces and kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from alula.cost.answer import Asked, answer
from alula.cost.measured import read_measured
from alula.cost.telling.document import Document
from alula.errors import UsageError
from alula.machine.whatif import WhatIf
from priced import setting


def _file(folder: Path, **data: Any) -> Path:
    path = folder / "step.json"
    path.write_text(json.dumps(data))
    return path


def _answer(path: Path) -> Document:
    what_if = WhatIf("8x-rtx-pro-6000")
    return answer(Asked("kimi-k2.5", what_if, measured=path))


def test_measured_allreduces_replace_the_table(tmp_path: Path) -> None:
    path = _file(tmp_path, allreduces=[{"bytes": 14336, "us": 60}, {"bytes": 57344, "us": 60}])
    assert _answer(path).data["plain"]["tok_s"] == pytest.approx(
        setting(allreduce="60us").plain_tok_s()
    )


def test_measured_kernels_replace_their_component(tmp_path: Path) -> None:
    kernels = [{"component": "routed experts", "rows": n, "us_per_layer": 100 * n} for n in (1, 4)]
    launches = {
        each["rows"]: each for each in _answer(_file(tmp_path, kernels=kernels)).data["launches"]
    }
    own = setting()
    for rows in (1, 2, 4):
        part = {each["name"]: each for each in launches[rows]["components"]}["routed experts"]
        assert part["measured_ms"] == pytest.approx(own.shape.expert_layers * 0.1 * rows)
        assert part["memory_ms"] == part["launch_ms"] == 0
        assert launches[rows]["exchange_ms"] == pytest.approx(own.step(rows).exchange_s * 1e3)


def test_points_calibrate_the_answer_and_the_residuals_are_told(tmp_path: Path) -> None:
    true = setting(host_s=0.002)
    points = [{"rows": rows, "step_ms": true.step(rows).total_s * 1.1e3} for rows in (1, 4, 16)]
    document = _answer(_file(tmp_path, points=points))
    assert document.blocks[-1].title == "Calibration"
    assert document.data["plain"]["total_ms"] == pytest.approx(points[0]["step_ms"], rel=0.02)
    assert any("Fitted to 3 points" in note for note in document.notes)


def test_an_ambiguous_fit_names_what_would_decide(tmp_path: Path) -> None:
    document = _answer(_file(tmp_path, points=[{"plain_tok_s": 60}]))
    assert document.data["plain"]["tok_s"] == pytest.approx(60)
    assert any("To separate the constants, measure" in note for note in document.notes)


def test_more_than_the_nominal_bandwidth_is_told(tmp_path: Path) -> None:
    own = setting()
    points = [{"rows": n, "step_ms": own.step(n).total_s * 1e3 - s} for n, s in ((1, 1), (16, 8))]
    assert any("nothing reaches" in note for note in _answer(_file(tmp_path, points=points)).notes)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "holds no measurement"),
        ({"points": [{"rows": 1, "step_us": 11}]}, "step_us"),
        ({"points": [{"rows": 1}]}, "no time"),
        ({"points": [{"rows": 1, "step_ms": 1, "round_ms": 1}]}, "exactly one"),
        ({"points": [{"draft": "chain:3", "step_ms": 1}]}, "round_ms"),
        ({"points": [{"rows": 1, "step_ms": 0}]}, "step_ms"),
        ({"points": [{"rows": 0, "step_ms": 1}]}, "rows"),
        ({"points": [{"rows": 1, "step_ms": "11 ms"}]}, "step_ms"),
        ({"points": 3}, "list of objects"),
        ({"allreduces": [{"bytes": 1}]}, "us"),
        ({"allreduces": [{"kib": 1, "us": 3}]}, "kib"),
        ({"kernels": [{"component": "moe", "rows": 1, "us_per_layer": 1}]}, "routed experts"),
        ({"step": []}, "holds no measurement"),
        ({"points": [{"rows": 1, "step_ms": 1e300}]}, "step_ms"),
        ({"points": [{"rows": 1 << 40, "step_ms": 1}]}, "rows"),
        ({"points": [{"rows": 4, "plain_tok_s": 80}]}, "one row"),
        ({"points": [{"draft": "chain:3", "plain_tok_s": 80}]}, "one row"),
        ({"points": [{"draft": "chain:3", "rows": 9, "round_ms": 20}]}, "belongs"),
        ({"points": [{"round_ms": 20}]}, "belongs"),
        ({"kernels": [{"component": ["x"], "rows": 1, "us_per_layer": 1}]}, "components"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, data: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        read_measured(_file(tmp_path, **data)).points(setting())
    error = refusal.value
    assert named in f"{error.what} {error.why} {error.fix}"


@pytest.mark.parametrize(
    "data",
    [
        {"allreduces": [{"bytes": 1024, "us": 3}, {"bytes": 1024, "us": 4}]},
        {"kernels": [{"component": "router", "rows": 2, "us_per_layer": n} for n in (1, 2)]},
    ],
)
def test_a_size_measured_twice_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="measured twice"):
        read_measured(_file(tmp_path, **data))


@pytest.mark.parametrize(
    "data",
    [
        {"allreduces": [{"bytes": 1024, "us": 3}]},
        {"kernels": [{"component": "routed experts", "rows": 2, "us_per_layer": 1}]},
    ],
)
def test_what_plays_no_part_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"one GPU|another model"):
        answer(Asked("llama-3.1-8b", WhatIf("1x-h100"), measured=_file(tmp_path, **data)))


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        ({"allreduces": [{"bytes": 1024, "us": 3}]}, {"allreduce": "60us"}),
        ({"points": [{"draft": "chain:3", "round_ms": 20}]}, {"host": "1ms"}),
    ],
)
def test_what_is_measured_and_asked_as_well_is_refused(
    tmp_path: Path, data: dict[str, Any], asked: dict[str, Any]
) -> None:
    what_if = WhatIf("8x-rtx-pro-6000")
    with pytest.raises(UsageError, match="measured as well"):
        answer(Asked("kimi-k2.5", what_if, measured=_file(tmp_path, **data), **asked))


def test_times_that_fall_with_size_do_not_end_below_zero(tmp_path: Path) -> None:
    allreduces = [{"bytes": 100, "us": 100}, {"bytes": 200, "us": 1}]
    table = read_measured(_file(tmp_path, allreduces=allreduces)).allreduce
    assert table is not None
    assert table.seconds(150) == pytest.approx(50.5e-6)
    assert table.seconds(14_336) == pytest.approx(1e-6)


@pytest.mark.parametrize("text", ["not json", "[" * 100_000])
def test_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot read"):
        read_measured(path)


def test_programs_get_the_calibration_too(tmp_path: Path) -> None:
    true = setting(host_s=0.002)
    points = [{"rows": rows, "step_ms": true.step(rows).total_s * 1.1e3} for rows in (1, 4, 16)]
    found = _answer(_file(tmp_path, points=points)).data["calibration"]
    assert found["fitted"] == ("achieved bandwidth", "launch latency")
    assert [each["measured_ms"] for each in found["points"]] == pytest.approx(
        [point["step_ms"] for point in points]
    )
    for each in found["points"]:
        assert each["fitted_ms"] == pytest.approx(each["measured_ms"], rel=0.02)
    assert (
        _answer(_file(tmp_path, allreduces=[{"bytes": 14336, "us": 60}])).data["calibration"]
        is None
    )


def test_a_point_that_no_constants_explain_is_told(tmp_path: Path) -> None:
    """3 ms for a step that reads for 3.4 ms at the nominal bandwidth."""
    notes = _answer(_file(tmp_path, points=[{"rows": 1, "step_ms": 3}])).notes
    assert any("do not explain kimi-k2.5, 1 rows" in note for note in notes)
    own = setting().step().total_s * 1e3
    notes = _answer(_file(tmp_path, points=[{"rows": 1, "step_ms": own}])).notes
    assert not any("do not explain" in note for note in notes)


def test_points_that_leave_no_time_for_reading_are_told(tmp_path: Path) -> None:
    points = [{"rows": 1, "step_ms": 3}, {"rows": 16, "step_ms": 10}]
    document = _answer(_file(tmp_path, points=points))
    assert any("no time at all for reading" in note for note in document.notes)
    assert document.data["calibration"]["bandwidth_share"] is None
    json.dumps(document.data, allow_nan=False)
