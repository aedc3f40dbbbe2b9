"""The few constants of the step model, fitted to what was measured on a machine.

A predicted time is a sum of three parts, each proportional to one constant: bytes to the inverse
of the achieved bandwidth, kernels to the launch latency, and one for each round to the host. What
is left (exchanges, the fixed part) is taken as it is. So the fit is linear least squares, with
constants of zero or more. (Operations that outweigh their reading, rare in decoding, are counted
as reading.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from alula.cost.draft import Draft
from alula.cost.round import Setting
from alula.cost.step import Constants

CONSTANTS = ("achieved bandwidth", "launch latency", "host time per round")
_ALIKE = 1e-3  # columns whose angle is below this cannot be told apart by the points


class Point(NamedTuple):
    """One measurement: a launch with `rows` rows of each sequence, or a round with a draft."""

    setting: Setting
    measured_s: float
    rows: int = 1
    draft: Draft | None = None

    @property
    def name(self) -> str:
        """For people."""
        what = f"{self.rows} rows" if self.draft is None else f"a round of {self.draft.name}"
        where = f"{self.setting.shape.name}, {what}"
        return f"{where}, batch {self.setting.batch}, context {self.setting.context}"


class Residual(NamedTuple):
    """A point against the fit, and against the fit of all other points where one is possible."""

    point: Point
    fitted_s: float
    left_out_s: float | None


@dataclass(frozen=True)
class Fit:
    """What the points say."""

    bandwidth_share: float
    launch_s: float
    host_s: float
    fitted: tuple[str, ...]
    """Those of `CONSTANTS` that the points determine; the others kept their values."""
    residuals: tuple[Residual, ...]
    decides: str | None
    """The observation that would separate two explanations the points leave open."""

    def constants(self, given: Constants) -> Constants:
        """The given ones, with what was fitted in their place."""
        return replace(given, bandwidth_share=self.bandwidth_share, launch_s=self.launch_s)


class _Row(NamedTuple):
    """A point as an equation: measured − rest = share·x₀ + launches·x₁ + rounds·x₂."""

    memory_s: float
    """At nominal bandwidth."""
    launches_s: float
    """At one second per launch, scaled to the given latency."""
    rounds: float
    rest_s: float


def fit(points: Sequence[Point]) -> Fit:
    """Fit what the points determine; keep the rest."""
    rows = [_equation(point) for point in points]
    targets = [point.measured_s - row.rest_s for point, row in zip(points, rows, strict=True)]
    chosen = _determined(rows)
    values = _solve(rows, targets, chosen)
    residuals = tuple(
        Residual(point, row.rest_s + _predict(row, values), _left_out(rows, targets, index, chosen))
        for index, (point, row) in enumerate(zip(points, rows, strict=True))
    )
    given = points[0].setting.speed.constants
    return Fit(
        bandwidth_share=given.bandwidth_share / values[0] if values[0] else float("inf"),
        launch_s=given.launch_s * values[1],
        host_s=values[2],
        fitted=tuple(CONSTANTS[index] for index in chosen),
        residuals=residuals,
        decides=_deciding(points, rows, targets, chosen),
    )


def _equation(point: Point) -> _Row:
    """The three parts at the given constants: memory and launches in seconds, rounds counted."""
    setting = point.setting
    if point.draft is None:
        step = setting.step(point.rows)
        rest = step.exchange_s + step.fixed_s + step.measured_s
        return _Row(step.memory_s, step.launch_s, 0.0, rest)
    whole = setting.round(point.draft)
    verify, drafting = whole.verify, whole.drafting
    rest = verify.exchange_s + verify.fixed_s + verify.measured_s + drafting.exchange_s
    memory, launches = verify.memory_s + drafting.memory_s, verify.launch_s + drafting.launch_s
    return _Row(memory, launches, 1.0, rest)


def _columns(rows: Sequence[_Row]) -> np.ndarray:
    return np.array([row[:3] for row in rows], dtype=float)


def _determined(rows: Sequence[_Row]) -> list[int]:
    """Constants to fit: as many as the points tell apart, launch latency before bandwidth."""
    columns = _columns(rows)
    chosen: list[int] = []
    for index in (2, 1, 0):
        if not columns[:, index].any():
            continue
        trial = columns[:, [*chosen, index]]
        scaled = trial / np.linalg.norm(trial, axis=0)
        if np.linalg.svd(scaled, compute_uv=False)[-1] > _ALIKE and len(rows) > len(chosen):
            chosen.append(index)
    return sorted(chosen)


def _solve(
    rows: Sequence[_Row],
    targets: Sequence[float],
    chosen: Sequence[int],
    start: Sequence[float] = (1.0, 1.0, 0.0),
) -> list[float]:
    """Least squares of relative errors; a constant that would fall below zero is set to zero.

    Values are in units of the given constants; those not chosen keep `start`.
    """
    values = list(start)
    columns, wanted = _columns(rows), np.array(targets)
    weights = 1.0 / np.maximum(wanted, 1e-9)
    free = list(chosen)
    while free:
        kept = [index for index in range(3) if index not in free]
        left = wanted - columns[:, kept] @ np.array([values[index] for index in kept])
        found, *_ = np.linalg.lstsq(columns[:, free] * weights[:, None], left * weights)
        if (found >= 0).all():
            for index, value in zip(free, found, strict=True):
                values[index] = float(value)
            return values
        worst = free.pop(int(found.argmin()))
        values[worst] = 0.0
    return values


def _predict(row: _Row, values: Sequence[float]) -> float:
    return sum(part * value for part, value in zip(row[:3], values, strict=True))


def _left_out(
    rows: Sequence[_Row], targets: Sequence[float], index: int, chosen: Sequence[int]
) -> float | None:
    """A point predicted from all others, where they still determine as much."""
    others = [row for n, row in enumerate(rows) if n != index]
    if not others or _determined(others) != list(chosen):
        return None
    values = _solve(others, [t for n, t in enumerate(targets) if n != index], chosen)
    return rows[index].rest_s + _predict(rows[index], values)


def _deciding(
    points: Sequence[Point], rows: Sequence[_Row], targets: Sequence[float], chosen: Sequence[int]
) -> str | None:
    """Where two explanations of the points differ most.

    An explanation is one constant that takes all it can: of the pair, the other one is at the
    best that hardware allows (nominal bandwidth, no latency, no host).
    """
    open_ones = [n for n in range(3) if _columns(rows)[:, n].any() and n not in chosen]
    if not open_ones:
        return None
    pairs = [pair for pair in combinations((*chosen, *open_ones), 2) if set(pair) & set(open_ones)]
    best: tuple[float, str] = (0.0, "")
    setting = points[0].setting
    for pair in pairs:
        best_possible = [setting.speed.constants.bandwidth_share, 0.0, 0.0]
        stories = []
        for index in pair:
            start = [1.0, 1.0, 0.0]
            for other in pair:
                start[other] = best_possible[other]
            stories.append(_solve(rows, targets, [index], start))
        for name, trial in _trials(setting):
            row = _equation(trial)
            first, second = (row.rest_s + _predict(row, story) for story in stories)
            apart = abs(first - second) / max(first, second)
            if apart > best[0]:
                best = (
                    apart,
                    f"measure {name}: {first * 1e3:.1f} ms if {CONSTANTS[pair[0]]} explains the "
                    f"points, {second * 1e3:.1f} ms if {CONSTANTS[pair[1]]} does",
                )
    return best[1] or None


def _trials(setting: Setting) -> list[tuple[str, Point]]:
    """Observations that are cheap to make on the same setting."""
    found = [
        (f"a launch of {rows} rows", Point(setting, 0.0, rows)) for rows in (1, 2, 4, 8, 16, 32)
    ]
    longer = replace(setting, context=32 * 1024)
    return [*found, ("a plain step at 32k tokens of context", Point(longer, 0.0))]
