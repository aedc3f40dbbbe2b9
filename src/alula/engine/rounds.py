"""Rounds of a fixed size: laid out densely, and on a GPU captured once and launched as one graph.

A graph is kept for every number of sequences (rounded up to a power of two), pending and coming
depth of draft, and kind of sampling that has occurred; of pairs of depths, only for those that
occur often. All share one memory pool: they never run at the same time, and what one leaves there
is read before the next is launched; what the host reads meanwhile is in a mailbox.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alula.engine.launch import Launch
from alula.engine.lines import Lines
from alula.ops.advance import Mailbox
from alula.ops.memory import memory_for
from alula.ops.sample import Wants
from alula.speculation.walk import Path


class Outcome(NamedTuple):
    """What a launch leaves on the device."""

    launch: Launch
    path: Path
    logits: Tensor
    """[E', V] of the launch's nodes, as the target gave them."""
    columns: Tensor | None
    """[E, 6 + A] int64: what the host wants to know of each emitting sequence; None where it is
    left in a mailbox."""


class Size(NamedTuple):
    """What the tensor shapes and the kernels of a round follow from."""

    sequences: int
    pending: int
    """Levels of draft that wait for verification, at most."""
    depth: int
    """Levels that are drafted for the round after it."""
    wants: Wants

    def covers(self, other: Size) -> bool:
        """Whether it verifies and drafts what the other does, and maybe more."""
        alike = (self.sequences, self.wants) == (other.sequences, other.wants)
        return alike and self.pending >= other.pending and self.depth >= other.depth


_GREEDY = Wants(noise=False, filters=0, adjustments=False)
_TIMINGS, _IN_A_ROW = 3, 5
_SELDOM = 32
"""Rounds of a size that another one serves for before it is captured itself."""
_ROOM = 1 << 25
"""Bytes that have to be free before anything is captured."""
_LOWER = (
    "lower the number of sequences (--max-sequences) or of cached tokens (--cache-tokens), or "
    "switch capturing off (--no-graphs)"
)
Compute = Callable[[Tensor, Size, Mailbox | None], Outcome]
"""A round of the lines [S], on the device. Without a mailbox it gives back what the host wants."""


class Flight(NamedTuple):
    """A launch whose outcome may not be there yet."""

    outcome: Outcome
    columns: Tensor
    """Its columns, on the host once `landed`."""
    landed: torch.cuda.Event | None

    @classmethod
    def of(cls, outcome: Outcome) -> Flight:
        """One without a mailbox: the host asks the device for its columns, and so waits."""
        assert outcome.columns is not None
        return cls(outcome, outcome.columns, None)

    def read(self) -> list[list[int]]:
        """The columns; waits for them."""
        if self.landed is not None:
            self.landed.synchronize()
        found: list[list[int]] = self.columns.tolist()
        return found


class Rounds:
    """Launches rounds as they are, operation by operation."""

    def __init__(self, lines: Lines, compute: Compute) -> None:
        self._lines = lines
        self._compute = compute

    @property
    def capturing(self) -> float:
        """Seconds that captures have taken so far, with what was compiled for them."""
        return 0.0

    def launch(self, lines: Sequence[int], pending: int, depth: int, wants: Wants) -> Flight:
        """A round of these lines; the spare line fills it up."""
        size = Size(rounded(len(lines), self._lines.count), pending, depth, wants)
        filled = [*lines, *[self._lines.spare] * (size.sequences - len(lines))]
        return self._launch(filled, self._fitting(size))

    def _fitting(self, size: Size) -> Size:
        """The size that serves for one that is asked for."""
        return size

    def seconds(self, sequences: int, pending: int, depth: int) -> float:
        """What a greedy round of this size takes while it runs freely, on the spare line."""
        size = Size(rounded(sequences, self._lines.count), pending, depth, _GREEDY)
        spare = [self._lines.spare] * size.sequences
        taken = []
        for _ in range(_TIMINGS + 1):
            started = time.perf_counter()
            for _ in range(_IN_A_ROW):
                flight = self._launch(spare, size)
            flight.read()
            taken.append((time.perf_counter() - started) / _IN_A_ROW)
        return median(taken[1:])  # the first captures what is not captured yet

    def _launch(self, lines: list[int], size: Size) -> Flight:
        at = torch.tensor(lines, device=self._lines.device)
        return Flight.of(self._compute(at, size, None))


class CapturedRounds(Rounds):
    """Launches rounds as CUDA graphs."""

    _capturing = 0.0
    _chains = False

    def __init__(self, lines: Lines, compute: Compute, *, chains: bool = False) -> None:
        """`chains`: drafts are chains, of which a part is a draft too. Then a deeper round may
        serve for one that is seldom asked for.
        """
        super().__init__(lines, compute)
        self._chains = chains
        self._asked: Counter[Size] = Counter()
        self._graphs: dict[tuple[Size, tuple[int, ...]], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._first = self._begin()

    def _begin(self) -> torch.cuda.CUDAGraph:
        """Capture next to nothing. torch keeps a little memory beside the first graph there is, and
        ends the process if there is none just then; beside a further one it needs nothing.
        """
        device = self._lines.device
        with memory_for("captured rounds", device, _LOWER):
            torch.cuda.empty_cache()
            torch.empty(_ROOM, dtype=torch.uint8, device=device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                torch.zeros(1, device=device)
        return graph

    @property
    def capturing(self) -> float:
        """See `Rounds.capturing`."""
        return self._capturing

    @property
    def count(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    def replay_deepest(self) -> Callable[[], object]:
        """What launches the graph with the deepest draft on whatever its lines hold: for timing."""
        return max(self._graphs.items(), key=lambda item: item[0][0].pending)[1].replay

    def _fitting(self, size: Size) -> Size:
        """A depth that changes is pending in one round and coming in the next, in every pair there
        is. A capture takes far longer than a round, so only those pairs get one that are asked for
        often; for others a round serves that verifies as much or more, and drafts no deeper than
        either depth. A plain step has one of its own always.
        """
        tensors, is_plain = self._lines.replaceable, not (size.pending or size.depth)
        if not self._chains or is_plain or (size, tensors) in self._graphs:
            return size
        self._asked[size] += 1
        if self._asked[size] > _SELDOM:
            return size
        both = max(size.pending, size.depth)
        known = [each for each, of in self._graphs if of == tensors and each.depth <= both]
        serving = [each for each in known if each.covers(size)]
        if serving:
            return min(serving, key=lambda each: (each.depth, each.pending))
        return size._replace(pending=both, depth=both)

    def _launch(self, lines: list[int], size: Size) -> Flight:
        key = (size, self._lines.replaceable)
        graph = self._graphs.get(key)
        if graph is None:
            # One whose tensors have been replaced can never be launched again.
            self._graphs = {k: g for k, g in self._graphs.items() if k[1] == key[1]}
            graph = self._graphs[key] = self._capture(size)
        return graph.launch(lines)

    def _capture(self, size: Size) -> _Graph:
        # What is under way still takes its own time, and a capture waits for it anyway.
        torch.cuda.synchronize(self._lines.device)
        started = time.perf_counter()
        what = f"a captured round of {size.sequences} sequences"
        try:
            with memory_for(what, self._lines.device, _LOWER):
                return _Graph(size, self._lines, self._compute, self._pool)
        finally:
            self._capturing += time.perf_counter() - started


class _Graph:
    """One captured round, its inputs and its outcome at fixed addresses."""

    def __init__(self, size: Size, lines: Lines, compute: Compute, pool: Any) -> None:
        spare = [lines.spare] * size.sequences
        self._at = torch.tensor(spare, device=lines.device)
        self._lines = spare
        # A copy may wait for the round under way while the host writes the next.
        self._staged = [torch.tensor(spare).pin_memory() for _ in range(2)]
        # Both compile what is not compiled yet, and change no sequence.
        columns = Flight.of(compute(self._at, size, None)).columns
        self._mailbox = _mailbox(columns)
        compute(self._at, size, self._mailbox)
        torch.cuda.synchronize(lines.device)
        self._mailbox.rounds.zero_()
        self._launches: int | None = 0
        """So far; None while it is not certain."""
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._outcome = compute(self._at, size, self._mailbox)

    def replay(self) -> Tensor:
        """Launch it and nothing else; returns where its columns will be."""
        if self._launches is None:  # an exception, Ctrl-C's too, came before it was counted
            self._launches = int(self._mailbox.rounds[0])
        before, self._launches = self._launches, None
        self._graph.replay()
        self._launches = before + 1
        return self._mailbox.columns[before % 2]

    def launch(self, lines: list[int]) -> Flight:
        """Replay it; returns at once."""
        if lines != self._lines:
            self._lines = []  # until they are on their way, neither these nor those before
            self._staged.reverse()
            self._staged[0].copy_(torch.tensor(lines))
            self._at.copy_(self._staged[0], non_blocking=True)
            self._lines = lines
        columns = self.replay()
        landed = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        landed.record()
        return Flight(self._outcome, columns, landed)


def _mailbox(columns: Tensor) -> Mailbox:
    """An empty one for such columns."""
    room = torch.zeros(2, *columns.shape, dtype=columns.dtype).pin_memory()
    return Mailbox(room, columns.new_zeros(len(columns)))


def rounded(sequences: int, most: int) -> int:
    """The next power of two, at most `most`."""
    return min(1 << (sequences - 1).bit_length(), most)
