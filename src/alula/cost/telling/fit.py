"""What a calibration found, for people."""

from __future__ import annotations

import math

from alula.cost.calibrate import Fit, Residual
from alula.cost.telling.document import Table

_UNEXPLAINED = 0.15
"""What published measurements are met within; a point further off is another story."""


def fit_data(found: Fit) -> dict[str, object]:
    """The same for programs; no share where nothing is left for reading."""
    share = None if math.isinf(found.bandwidth_share) else found.bandwidth_share
    return {
        "fitted": found.fitted,
        "bandwidth_share": share,
        "launch_us": found.launch_s * 1e6,
        "host_ms": found.host_s * 1e3,
        "points": [
            {
                "name": each.point.name,
                "measured_ms": each.point.measured_s * 1e3,
                "fitted_ms": each.fitted_s * 1e3,
                "from_the_others_ms": None if each.left_out_s is None else each.left_out_s * 1e3,
            }
            for each in found.residuals
        ],
        "decides": found.decides,
    }


def fit_table(found: Fit) -> Table:
    """Each point against the fit, and against the fit of all others."""
    headers = ("measured point", "measured ms", "fitted ms", "off", "from the others ms", "off")
    return Table("Calibration", headers, tuple(_row(each) for each in found.residuals))


def _row(residual: Residual) -> tuple[str, ...]:
    point, fitted_s, left_s = residual
    left = ("", "") if left_s is None else _against(left_s, point.measured_s)
    return (
        point.name,
        f"{point.measured_s * 1e3:.2f}",
        *_against(fitted_s, point.measured_s),
        *left,
    )


def _against(predicted_s: float, measured_s: float) -> tuple[str, str]:
    return f"{predicted_s * 1e3:.2f}", f"{predicted_s / measured_s - 1:+.1%}"


def fit_notes(found: Fit, name: str) -> tuple[str, ...]:
    """What was fitted to the points of a file, what is odd, and what would tell more."""
    fitted = ", ".join(found.fitted)
    notes = [f"Fitted to {len(found.residuals)} points of {name}: {fitted}."]
    for residual in found.residuals:
        apart = residual.fitted_s / residual.point.measured_s - 1
        if abs(apart) > _UNEXPLAINED:
            notes.append(
                f"The constants do not explain {residual.point.name}: fitted {apart:+.0%} off what "
                "was measured. Measure it again, or do not trust this estimate."
            )
    if math.isinf(found.bandwidth_share):
        notes.append("The fit leaves no time at all for reading weights: a point is wrong.")
    elif found.bandwidth_share > 1:
        notes.append(
            f"The fit needs {found.bandwidth_share:.0%} of the nominal bandwidth, which nothing "
            "reaches: a point is wrong, or weights came from a cache."
        )
    if found.decides is not None:
        notes.append(f"To separate the constants, {found.decides}.")
    return tuple(notes)
