"""The fit: it finds constants, keeps what the points do not say, names what would tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.cost.calibrate import Point, fit
from alula.cost.draft import chain
from alula.cost.machine import constants
from alula.cost.round import Setting
from priced import setting


def _with(own: Setting, share: float, launch_s: float, host_s: float = 0.0) -> Setting:
    given_constants = replace(own.speed.constants, bandwidth_share=share, launch_s=launch_s)
    return replace(own, speed=replace(own.speed, constants=given_constants), host_s=host_s)


def test_the_launch_latency_on_record_is_what_the_baseline_gives() -> None:
    found = fit([Point(setting(), 1 / 89.5)])
    assert found.launch_s == pytest.approx(constants().launch_s, rel=0.005)
    assert found.fitted == ("launch latency",)
    assert found.bandwidth_share == pytest.approx(constants().bandwidth_share)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.4, 1.0), st.floats(5e-7, 8e-6), st.floats(0.0, 0.01))
def test_constants_are_found_again(share: float, launch_s: float, host_s: float) -> None:
    own = setting()
    true = _with(own, share, launch_s, host_s)
    points = [Point(own, true.step(rows).total_s, rows) for rows in (1, 4, 16)]
    points += [Point(own, true.round(chain(k)).total_s, draft=chain(k)) for k in (1, 3)]
    found = fit(points)
    assert found.bandwidth_share == pytest.approx(share, rel=5e-3)
    assert found.launch_s == pytest.approx(launch_s, rel=2e-2, abs=1e-8)
    assert found.host_s == pytest.approx(host_s, abs=5e-5)
    assert found.decides is None
    for point, fitted_s, left_s in found.residuals:
        assert fitted_s == pytest.approx(point.measured_s, rel=5e-3)
        assert left_s is None or left_s == pytest.approx(point.measured_s, rel=2e-2)


def test_noise_stays_in_the_residuals() -> None:
    own = setting()
    points = [
        Point(own, own.step(rows).total_s * factor, rows)
        for rows, factor in ((1, 1.03), (4, 0.97), (8, 1.02), (16, 0.99))
    ]
    found = fit(points)
    apart = [abs(r.fitted_s / r.point.measured_s - 1) for r in found.residuals]
    left_out = [abs(r.left_out_s / r.point.measured_s - 1) for r in found.residuals if r.left_out_s]
    assert 0 < max(apart) < 0.04
    assert len(left_out) == 4
    assert max(left_out) > max(apart)


def test_one_point_cannot_tell_bandwidth_from_latency_and_says_what_could() -> None:
    found = fit([Point(setting(), 1 / 89.5)])
    assert found.decides is not None
    assert "32 rows" in found.decides
    assert "achieved bandwidth" in found.decides


def test_points_alike_cannot_either() -> None:
    own = setting()
    found = fit([Point(own, own.step().total_s), Point(own, own.step().total_s * 1.01)])
    assert len(found.fitted) == 1


def test_no_constant_falls_below_zero() -> None:
    own = setting()
    points = [Point(own, own.step().exchange_s + 0.0036, 1), Point(own, own.step(16).total_s, 16)]
    found = fit(points)
    assert found.launch_s >= 0
    assert found.bandwidth_share > 0
