"""Captured rounds whose launches are kept, and such with events as the first and the last node of
their graphs: there the device itself says how long each takes and how long it waits for the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from alula.engine.lines import Lines
from alula.engine.rounds import CapturedRounds, Compute, Flight, Outcome, Rounds, Size
from alula.ops.advance import Mailbox
from alula.ops.sample import Wants


class _Marks(NamedTuple):
    """The ends of a round."""

    begun: torch.cuda.Event
    ended: torch.cuda.Event


class NotedRounds(CapturedRounds):
    """Launches rounds as an engine does, and keeps what it has launched."""

    def __init__(self, lines: Lines, compute: Compute) -> None:
        super().__init__(lines, compute)
        self.flights: list[Flight] = []
        """Since they were last forgotten."""

    def launch(self, lines: Sequence[int], pending: int, depth: int, wants: Wants) -> Flight:
        """See `Rounds.launch`."""
        flight = super().launch(lines, pending, depth, wants)
        self.flights.append(flight)
        return flight

    def periods_ms(self) -> list[float]:
        """From the end of each round to that of the next; all have to have landed."""
        ends = [flight.landed for flight in self.flights if flight.landed is not None]
        return [float(one.elapsed_time(next_)) for one, next_ in itertools.pairwise(ends)]


class WatchedRounds(Rounds):
    """Launches rounds from two sets of graphs by turns: the events of one are read while the other
    runs, before its own next launch records them anew.
    """

    def __init__(self, lines: Lines, compute: Compute) -> None:
        super().__init__(lines, compute)
        self.flights: list[Flight] = []
        """Of all launches since they were last forgotten; so are the times."""
        self.graph_ms: list[float] = []
        """From the first to the last node of a round's graph."""
        self.idle_us: list[float] = []
        """From the last node of one round's graph to the first of the next."""
        self._marks = [_Marks(_external(), _external()) for _ in range(2)]
        self._sets = [CapturedRounds(lines, _between(marks, compute)) for marks in self._marks]

    @property
    def capturing(self) -> float:
        """See `Rounds.capturing`."""
        return sum(captured.capturing for captured in self._sets)

    @property
    def replay_deepest(self) -> Callable[[], object]:
        """See `CapturedRounds.replay_deepest`."""
        return self._sets[0].replay_deepest()

    def launch(self, lines: Sequence[int], pending: int, depth: int, wants: Wants) -> Flight:
        """See `Rounds.launch`."""
        if len(self.flights) > 1:
            self._read()
        flight = self._sets[0].launch(lines, pending, depth, wants)
        self._sets.reverse()
        self._marks.reverse()
        self.flights.append(flight)
        return flight

    def forget(self) -> None:
        """Begin to watch anew."""
        for kept in (self.flights, self.graph_ms, self.idle_us):
            kept.clear()

    def _read(self) -> None:
        """The times of the launch before the last, and between the two."""
        landed = self.flights[-2].landed
        assert landed is not None
        landed.synchronize()
        before, last = self._marks
        self.graph_ms.append(before.begun.elapsed_time(before.ended))
        last.begun.synchronize()
        # Until a launch has begun its event may tell when the one of its set before it did.
        while (idle := before.ended.elapsed_time(last.begun)) < 0:
            pass
        self.idle_us.append(1e3 * idle)


def _external() -> torch.cuda.Event:
    """One that a graph records each time it runs."""
    return torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]


def _between(marks: _Marks, compute: Compute) -> Compute:
    def marked(at: Tensor, size: Size, mailbox: Mailbox | None) -> Outcome:
        marks.begun.record()
        outcome = compute(at, size, mailbox)
        marks.ended.record()
        return outcome

    return marked
