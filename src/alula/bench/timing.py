"""Times of launches on a GPU: captured, warm, interleaved, and medians of them.

A launch is captured as a CUDA graph, so that the host's time does not count. Launches that are
compared take turns, since a machine's speed drifts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import torch

Launch = Callable[[], object]
Clock = Callable[[], float]
"""Launches something once and says how many microseconds it took."""

_ROUGH_TURNS = 3
_TURNS = 15
_FAR_BEHIND = 1.15
_BEHIND = 1.03
_TURNS_BETWEEN_CUTS = 4
_SUMMED_FLOATS = 1 << 30

Name = TypeVar("Name", bound=Hashable)


class GraphClock:
    """Replays a captured launch between two events."""

    def __init__(self, launch: Launch, parts: int = 1) -> None:
        """`parts`: what the launch does so many times over; the clock tells the time of one."""
        launch()
        torch.cuda.synchronize()
        self._parts = parts
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            launch()
        self._graph.replay()

    def __call__(self) -> float:
        """Microseconds of one part."""
        start, end = (event() for _ in range(2))
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end)) / self._parts


class Timed(NamedTuple):
    """What a launch took, in microseconds."""

    median: float
    turns: int


def race(clocks: dict[Name, Clock], turns: int = _TURNS) -> dict[Name, Timed]:
    """Time all by turns; who is far behind after the first turns, or behind later, drops out.

    Returns the median of every one's turns. Their order turns around from turn to turn.
    """
    found: dict[Name, list[float]] = {name: [] for name in clocks}
    running = list(clocks)
    for turn in range(turns):
        for name in running[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(clocks[name]())
        slack = _slack(turn + 1)
        if slack is not None and len(running) > 1:
            best = min(median(found[name]) for name in running)
            running = [name for name in running if median(found[name]) <= slack * best]
    return {name: Timed(median(taken), len(taken)) for name, taken in found.items()}


def _slack(turns: int) -> float | None:
    """How far behind one may be after so many turns; None where nobody drops out."""
    if turns == _ROUGH_TURNS:
        return _FAR_BEHIND
    behind = turns > _ROUGH_TURNS and (turns - _ROUGH_TURNS) % _TURNS_BETWEEN_CUTS == 0
    return _BEHIND if behind else None


def warm_up(launch: Launch, seconds: float = 0.3) -> None:
    """Launch for a while, until the device's clocks have risen."""
    start, end = event(), event()
    start.record()
    taken = 0.0
    while taken < 1e3 * seconds:
        launch()
        end.record()
        end.synchronize()
        taken = float(start.elapsed_time(end))


def read_limit(device: torch.device) -> float:
    """Terabytes a second that a sum reads."""
    source = torch.ones(_SUMMED_FLOATS, device=device)
    warm_up(source.sum)
    clock = GraphClock(source.sum)
    return source.nbytes / middle([clock() for _ in range(_TURNS)]) / 1e6


def middle(values: Sequence[float]) -> float:
    """The median."""
    return float(median(values))


def event() -> torch.cuda.Event:
    """One that says when it is reached."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
