"""Measured points of a machine, from a JSON file; every unit is in its key.

    {"points": [{"rows": 1, "step_ms": 11.2}, {"draft": "chain:3", "round_ms": 20.3}],
     "allreduces": [{"bytes": 14336, "us": 27.0}],
     "kernels": [{"component": "routed experts", "rows": 8, "us_per_layer": 151}]}

A point may name its `batch`, `context_tokens`, `model` and `weights` where they differ from what
is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from alula.cost.allreduce import TableAllReduce
from alula.cost.calibrate import Point
from alula.cost.draft import parse_draft
from alula.cost.formats import format_named
from alula.cost.reading.model import find_model
from alula.cost.round import Setting
from alula.cost.shape import Component
from alula.cost.step import KernelTable
from alula.cost.units import number, whole
from alula.errors import UsageError

_TIMES = ("step_ms", "round_ms", "plain_tok_s")
_KEYS = ("rows", "draft", *_TIMES, "batch", "context_tokens", "model", "weights")
_LISTS = ("points", "allreduces", "kernels")


@dataclass(frozen=True)
class Measured:
    """A file's points, still without a setting, and its all-reduces."""

    entries: tuple[Mapping[str, Any], ...]
    allreduce: TableAllReduce | None
    kernels: tuple[KernelTable, ...]

    def points(self, setting: Setting) -> list[Point]:
        """The points on the machine and layout of `setting`."""
        return [_point(entry, setting) for entry in self.entries]


def read_measured(path: Path) -> Measured:
    """Read a file of measurements. Raises UsageError for what it does not know."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path}", str(error), "give a JSON file of points") from error
    if not isinstance(data, dict) or not any(data.get(key) for key in _LISTS):
        raise UsageError(
            f"{path} holds no measurement",
            f"it has none of {', '.join(_LISTS)}",
            "see docs/estimate.md for its form",
        )
    _only(data, (*_LISTS, "source"), path.name)
    return Measured(
        tuple(_tables(data, "points")),
        _allreduce(_tables(data, "allreduces"), path),
        _kernels(_tables(data, "kernels")),
    )


def _point(entry: Mapping[str, Any], setting: Setting) -> Point:
    _only(entry, _KEYS, "a point")
    given = [key for key in _TIMES if key in entry]
    if len(given) != 1:
        raise UsageError(
            f"a point of {setting.shape.name} is not understood",
            f"it holds {', '.join(given) or 'no time'}",
            f"give exactly one of {', '.join(_TIMES)}",
        )
    batch = _whole(entry, "batch", setting.batch)
    own = replace(setting, batch=batch, context=_whole(entry, "context_tokens", setting.context))
    if "model" in entry:
        own = replace(own, shape=find_model(str(entry["model"])))
    if "weights" in entry:
        own = replace(own, shape=own.shape.with_weights(format_named(str(entry["weights"]))))
    figure = number(entry[given[0]], f"`{given[0]}`")
    if figure == 0:
        raise UsageError(f"`{given[0]}` is 0", "nothing takes no time", "correct it")
    _paired(entry, given[0])
    if given[0] == "plain_tok_s":
        return Point(own, batch / figure, 1)
    draft = parse_draft(str(entry["draft"])) if "draft" in entry else None
    return Point(own, figure * 1e-3, _whole(entry, "rows", 1), draft)


def _paired(entry: Mapping[str, Any], time: str) -> None:
    """Each kind of time has its own size, which another one would leave without a meaning."""
    sizes = {"step_ms": {"rows"}, "round_ms": {"draft"}, "plain_tok_s": set()}[time]
    given = {"rows", "draft"} & set(entry)
    if given - sizes or (time == "round_ms" and not given):
        raise UsageError(
            "a point is not understood",
            f"it holds {', '.join([time, *sorted(given)])}; `step_ms` is the time of a launch of "
            "`rows` rows, `round_ms` that of a round with a `draft`, and `plain_tok_s` the speed "
            "of plain decoding, one row",
            "give one time, and of `rows` and `draft` the one that belongs to it",
        )


def _allreduce(entries: Sequence[Mapping[str, Any]], path: Path) -> TableAllReduce | None:
    if not entries:
        return None
    for entry in entries:
        _only(entry, ("bytes", "us"), "an all-reduce")
        if set(entry) != {"bytes", "us"}:
            raise UsageError("an all-reduce lacks a figure", "it has bytes and us", "give both")
    points = [
        (number(entry["bytes"], "`bytes`"), number(entry["us"], "`us`") * 1e-6) for entry in entries
    ]
    return TableAllReduce(_rising(points), f"measured, {path.name}", "measured on the machine")


def _kernels(entries: Sequence[Mapping[str, Any]]) -> tuple[KernelTable, ...]:
    points: dict[Component, list[tuple[float, float]]] = {}
    for entry in entries:
        keys = ("component", "rows", "us_per_layer")
        _only(entry, keys, "a kernel")
        if set(entry) != set(keys) or entry["component"] not in list(Component):
            raise UsageError(
                "a kernel is not understood",
                f"it has {', '.join(keys)}; components are {', '.join(Component)}",
                "give all three",
            )
        time_s = number(entry["us_per_layer"], "`us_per_layer`") * 1e-6
        component = Component(entry["component"])
        points.setdefault(component, []).append((_whole(entry, "rows", 1), time_s))
    return tuple(KernelTable(component, _rising(found)) for component, found in points.items())


def _rising(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """In order of size. Raises UsageError where one was measured twice."""
    found = tuple(sorted(points))
    for (one, _), (other, _) in pairwise(found):
        if one == other:
            raise UsageError(
                f"{one:g} bytes or rows were measured twice",
                "the figures lie in one table",
                "keep one of the two, or their mean",
            )
    return found


def _whole(entry: Mapping[str, Any], key: str, default: int) -> int:
    return whole(entry.get(key, default), f"`{key}`")


def _tables(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UsageError(f"`{key}` is not understood", "it is a list of objects", "correct it")
    return value


def _only(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise UsageError(
                f"unknown entry `{key}` in {where}",
                f"known are {', '.join(known)}; a key names its unit",
                "convert the figure, or remove it",
            )
