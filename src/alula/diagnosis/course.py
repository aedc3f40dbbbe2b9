"""The course of a run: which failures ended a start, and which it survived."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from alula.diagnosis.events import Event, read_events
from alula.diagnosis.signatures import Kind, Knowledge

_STILL_ALIVE_SECONDS = 30.0
_STILL_ALIVE_LINES = 1000
"""How long after an error a sign of life counts: ranks do not fall silent at the same moment."""
_MOST_KEPT = 1000
"""Of what explains nothing the first ones are enough."""
_TROUBLE = (None, Kind.FAILURE)


_Kept = TypeVar("_Kept")


@dataclass
class Course:
    """What happened, in the order of time over all ranks."""

    failures: list[Event] = field(default_factory=list)
    """Known failures and unknown errors that nothing shows to have been survived."""
    survived: list[Event] = field(default_factory=list)
    wrappers: list[Event] = field(default_factory=list)
    remarks: list[Event] = field(default_factory=list)
    """Degraded modes, harmless lines and hints."""
    arguments: list[str] = field(default_factory=list)
    """Lines in which a run prints its settings."""
    latest: Event | None = None
    """The last mark of progress."""
    starts: int = 0
    ready: bool = False
    """Whether the last start became ready."""


def follow(paths: Iterable[Path], known: Knowledge) -> Course:
    """Read all logs of one run; several files are its ranks. Raises `UsageError`."""
    course = Course()
    pending: list[Event] = []
    dying = False
    for order, found in enumerate(_in_time([read_events(path, known) for path in paths])):
        event = replace(found, order=order)
        if event.mark:
            pending = _progress(course, pending, event)
            dying = dying and event.mark not in ("start", "ready")
        elif event.kind is Kind.WRAPPER:
            _keep(course.wrappers, [event])
            dying = True
        elif event.kind in _TROUBLE:
            pending.append(event)
        else:
            _keep(course.remarks, [event])
        if dying:
            course.failures += pending
            pending = []
    course.failures = sorted(course.failures + pending, key=lambda event: event.order)
    return course


def _progress(course: Course, pending: list[Event], mark: Event) -> list[Event]:
    """Settle what a mark decides; returns what stays open."""
    if mark.mark == "arguments":
        _keep(course.arguments, [mark.text])
        return pending
    course.latest = mark
    if mark.mark == "start":
        course.starts = max(course.starts, mark.start)
        course.ready = False
        course.failures += [event for event in pending if event.file == mark.file]
        return [event for event in pending if event.file != mark.file]
    if mark.mark == "ready":
        course.ready = True
        _keep(course.survived, pending)
        return []
    if mark.mark == "alive":
        outlived = [event for event in pending if _long_before(event, mark)]
        _keep(course.survived, outlived)
        return [event for event in pending if event not in outlived]
    return pending


def _keep(kept: list[_Kept], more: list[_Kept]) -> None:
    kept += more[: _MOST_KEPT - len(kept)]


def _long_before(event: Event, mark: Event) -> bool:
    if event.seconds is not None and mark.seconds is not None:
        return mark.seconds - event.seconds >= _STILL_ALIVE_SECONDS
    return event.file == mark.file and mark.number - event.number >= _STILL_ALIVE_LINES


def near(first: Event, second: Event, seconds: float, lines: int) -> bool:
    """Whether two events may belong to one moment: by time, or by place in a file without times.

    Of two files one of which has no times nothing says that they do not.
    """
    if first.seconds is not None and second.seconds is not None:
        return abs(first.seconds - second.seconds) <= seconds
    return first.file != second.file or abs(first.number - second.number) <= lines


def _in_time(logs: list[Iterator[Event]]) -> Iterator[Event]:
    """All events by time; a line late within its file keeps its place there."""
    for _, event in heapq.merge(*map(_onward, logs), key=lambda timed: timed[0]):
        yield event


def _onward(log: Iterator[Event]) -> Iterator[tuple[float, Event]]:
    latest = -math.inf
    for event in log:
        latest = max(latest, event.seconds if event.seconds is not None else latest)
        yield latest, event
