"""Between measured points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Straight lines between `points`, whose first numbers rise.

    Below the first point its value holds; beyond the last one the last line goes on where it
    rises; where it falls, its end holds, since a falling line would end below zero.
    """
    places = [place for place, _ in points]
    if x <= places[0] or len(places) == 1:
        return points[0][1]
    if x > places[-1] and points[-1][1] < points[-2][1]:
        return points[-1][1]
    right = min(bisect_left(places, x), len(places) - 1)
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
