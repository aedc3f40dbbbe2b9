"""The learning curve: a line of JSON for each point, and a picture of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Point = dict[str, Any]
_WIDTH, _HEIGHT, _MARGIN = 720, 360, 56
_COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6b4e9b", "#555555")


class Curve:
    """Points of a fit, appended to a file as they come."""

    def __init__(self, path: Path, *, until: int) -> None:
        """Go on with the file at `path`; points beyond step `until` were not kept."""
        self._path = path
        self.points = [p for p in read_points(path) if p["step"] <= until]
        text = "".join(json.dumps(point) + "\n" for point in self.points)
        path.write_text(text, "utf-8")

    def add(self, point: Point) -> None:
        """Append a point, which has a `step`."""
        self.points.append(point)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")

    def draw(self) -> None:
        """Write the picture beside the file."""
        self._path.with_suffix(".svg").write_text(svg(self.points), "utf-8")


def read_points(path: Path) -> list[Point]:
    """All whole lines of a curve's file."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text("utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # written half when the run was killed
    return found


def svg(points: Sequence[Point]) -> str:
    """Accuracy by step of unrolling, left axis, and accepted length on held-out text, right."""
    trained = [p for p in points if "accuracy" in p]
    judged = [p for p in points if "tau" in p]
    end = max((p["step"] for p in points), default=1) or 1
    top = max([2.0, *(p["tau"] for p in judged)])
    depth = max((len(p["accuracy"]) for p in trained), default=0)
    lines = []
    for step in range(depth):
        line = [(p["step"] / end, p["accuracy"][step]) for p in trained]
        lines.append((f"accuracy, step {step + 1}", line))
    lines.append(
        ("held-out τ (right)", [(p["step"] / end, (p["tau"] - 1) / (top - 1)) for p in judged])
    )
    drawn = [_line(n, title, line) for n, (title, line) in enumerate(lines) if line]
    body = "\n".join([_axes(end, top), *drawn])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _place(x: float, y: float) -> tuple[float, float]:
    """From the unit square to the picture."""
    inner_width, inner_height = _WIDTH - 2 * _MARGIN - 120, _HEIGHT - 2 * _MARGIN
    return _MARGIN + x * inner_width, _HEIGHT - _MARGIN - y * inner_height


def _axes(end: int, top: float) -> str:
    parts = []
    for tick in range(6):
        share = tick / 5
        (left, y), (right, _) = _place(0, share), _place(1, share)
        x, bottom = _place(share, 0)
        parts += [
            f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            _text(left - 6, y + 4, f"{share:.1f}", "end"),
            _text(right + 6, y + 4, f"{1 + share * (top - 1):.2f}", "start"),
            _text(x, bottom + 18, f"{share * end:,.0f}", "middle"),
        ]
    middle, bottom = _place(0.5, 0)
    parts.append(_text(middle, bottom + 36, "optimiser steps", "middle"))
    return "\n".join(parts)


def _line(number: int, title: str, line: Sequence[tuple[float, float]]) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_place(*point) for point in line))
    across, up = _WIDTH - 130, 24 + 16 * number
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>\n'
        f'<rect x="{across}" y="{up - 8}" width="10" height="3" fill="{colour}"/>\n'
        + _text(across + 14, up, title, "start")
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{text}</text>'
