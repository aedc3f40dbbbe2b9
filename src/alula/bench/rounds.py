"""Rounds of a decoder with random weights: what a plain step costs, and one that speculates.

All shapes run by turns over the same weights. On a GPU a round's time is what lies between the
events at the ends of two, in an engine that runs freely. Beside it stand the time from the first
to the last node of the round's graph and that from there to the first node of the next, in which
the GPU is idle; they are taken of further rounds, since events that are nodes take time themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean
from typing import Any

import torch

from alula.bench.anatomy import Anatomy, dissect, watch
from alula.bench.random_engine import OFF, full_engine, random_network, speculator, tree_shape
from alula.bench.random_weights import random_decoder
from alula.bench.shapes import Subject
from alula.bench.simulated import SimulatedWalk
from alula.bench.timing import GraphClock, middle, read_limit
from alula.bench.watched import NotedRounds, WatchedRounds
from alula.engine.events import LaunchRecord
from alula.engine.heap import frozen_heap
from alula.engine.rounds import CapturedRounds
from alula.errors import UsageError
from alula.models.decoder import Decoder
from alula.models.progress import Progress, silent
from alula.speculation.eagle3 import Eagle3
from alula.speculation.tree import NO_DRAFT, TreeShape

_WARM_ROUNDS = 12
_MORE = 2
"""Rounds of a turn beside those that are timed: between two ends lies one period, and how long a
round was waited for is known when another one has been launched."""
_REPLAYS = 20
"""Room for launches of the graph alone, under the profiler."""


@dataclass(frozen=True)
class RoundPlan:
    """What is measured. Raises UsageError for what cannot be."""

    subject: Subject
    speculation: Sequence[str] = ()
    """off, ngram, chain:K or tree:DEPTHxWIDTH:NODES; plain steps are always measured."""
    batch: int = 1
    context: int = 512
    simulated: tuple[float, ...] | None = None
    """Acceptance by depth that is forced."""
    profile: bool = False
    rounds: int = 20
    repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("batch", "context", "rounds", "repeats"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name} cannot be {getattr(self, name)}",
                    "it must be a whole number of at least 1",
                    f"give --{name} a larger value, or leave it out",
                )
        if self.simulated is not None and all(shape == NO_DRAFT for shape in self.shapes.values()):
            raise UsageError(
                "there is no draft whose acceptance could be simulated",
                "only plain steps are measured",
                "add --speculation chain:K or tree:DEPTHxWIDTH:NODES",
            )
        if self.simulated is not None and len(self.simulated) > self.deepest:
            raise UsageError(
                f"--simulate-acceptance names {len(self.simulated)} levels",
                f"the deepest draft that is measured has {self.deepest}",
                f"name at most {self.deepest}, or add a deeper --speculation",
            )
        if self.longest > self.subject.shape.max_positions:
            raise UsageError(
                f"a context of {self.context} is too long to be measured",
                f"with the rounds that are timed it grows to {self.longest}, and the shape is made "
                f"for {self.subject.shape.max_positions} positions",
                "give a smaller --context",
            )

    @property
    def shapes(self) -> dict[str, TreeShape]:
        """All contenders, plain first, each once."""
        return {words: tree_shape(words) for words in dict.fromkeys((OFF, *self.speculation))}

    @property
    def deepest(self) -> int:
        """Levels of the deepest draft."""
        return max(shape.depth for shape in self.shapes.values())

    @property
    def longest(self) -> int:
        """Tokens that a sequence may come to."""
        turns = 1 + self.repeats
        rounds = 2 * (_WARM_ROUNDS + self.rounds * self.repeats + _MORE * turns) + _REPLAYS
        return self.context + rounds * (1 + self.deepest)


@dataclass(frozen=True)
class RoundTimes:
    """One contender. Milliseconds; what only a GPU can tell is None elsewhere."""

    shape: str
    round_ms: float
    """From the end of one round to the end of the next."""
    of_plain: float
    tokens_per_round: float
    """Of one sequence."""
    tokens_per_second: float
    """Of all sequences."""
    graph_ms: float | None
    """Of the round's graph."""
    idle_us: float | None
    """Between the graphs of two rounds: the median, the mean and the longest."""
    mean_idle_us: float | None
    most_idle_us: float | None
    launches: dict[str, int]
    """Captured ones, and others by what stood in the way."""
    simulation_us: float | None
    """What forcing the acceptance adds to a round; None where it is not forced."""


@dataclass(frozen=True)
class Measured:
    """All contenders over one decoder."""

    times: list[RoundTimes]
    limit_ms: float | None
    """What reading a plain step's bytes takes at the speed of a sum."""
    bandwidth: float | None
    """Terabytes a second that a sum reads."""
    anatomies: list[Anatomy]

    def as_json(self) -> dict[str, Any]:
        """For a result file."""
        return {
            "memory_limit_ms": self.limit_ms,
            "read_bandwidth_tb_per_s": self.bandwidth,
            "rounds": [asdict(times) for times in self.times],
            "anatomies": [anatomy.as_json() for anatomy in self.anatomies],
        }


def measure(
    plan: RoundPlan, device: torch.device, dtype: torch.dtype, progress: Progress = silent
) -> Measured:
    """Run all contenders by turns. Raises ResourceError where the memory does not suffice."""
    bandwidth = read_limit(device) if device.type == "cuda" else None
    decoder = random_decoder(plan.subject.shape, device, dtype=dtype)
    limit = _plain_bytes(decoder, plan) / bandwidth / 1e9 if bandwidth else None
    network = cache(lambda: random_network(plan.subject, decoder))
    contenders = [_Contender(plan, decoder, words, network) for words in plan.shapes]
    steps = (1 + 2 * plan.repeats) * len(contenders)
    with frozen_heap(), progress("measuring", steps) as task:
        for contender in contenders:
            contender.run(_WARM_ROUNDS)
            contender.watch(_WARM_ROUNDS)
            contender.forget()
            task.advance(1)
        for repeat in range(plan.repeats):
            for contender in contenders[:: 1 if repeat % 2 == 0 else -1]:
                contender.run(plan.rounds)
                task.advance(1)
        for _ in range(plan.repeats):
            for contender in contenders:
                contender.watch(plan.rounds)
                task.advance(1)
    plain = contenders[0].round_ms
    anatomies = []
    if plan.profile and limit is not None:
        anatomies = [contender.anatomy(1e3 * limit) for contender in contenders]
    return Measured([each.times(plain) for each in contenders], limit, bandwidth, anatomies)


class _Contender:
    """One shape with an engine of its own, full of sequences that never end."""

    def __init__(
        self, plan: RoundPlan, decoder: Decoder, words: str, network: Callable[[], Eagle3]
    ) -> None:
        self._plan, self._words, self._shape = plan, words, plan.shapes[words]
        self._device = decoder.device
        self._engine = full_engine(
            decoder, speculator(decoder, words, network), plan.batch, plan.context, plan.longest
        )
        self._walk = None
        runner = self._engine._runner
        if plan.simulated is not None and self._shape != NO_DRAFT:
            self._walk = SimulatedWalk(plan.simulated, self._shape, plan.batch, decoder.device)
            runner.walk = self._walk
        self._noted: NotedRounds | None = None
        self._watched: WatchedRounds | None = None
        if isinstance(runner.rounds, CapturedRounds):
            self._noted = NotedRounds(runner.lines, runner._round)
            self._watched = WatchedRounds(runner.lines, runner._round)
        self._records: list[LaunchRecord] = []
        self._periods: list[float] = []
        self._graphs: list[float] = []
        self._idle: list[float] = []
        self._engine.observers.append(self._records.append)

    def run(self, rounds: int) -> None:
        """So many rounds of all sequences; their times are kept."""
        if self._noted is None:
            self._step(rounds)
            self._periods += [1e3 * record.seconds for record in self._records[-rounds:]]
            return
        self._noted.flights.clear()
        self._engine._runner.rounds = self._noted
        self._step(rounds + 1)
        self._periods += self._noted.periods_ms()

    def watch(self, rounds: int) -> None:
        """So many further rounds; what their graphs take and what lies between is kept."""
        if self._watched is None:
            return
        self._watched.forget()
        self._engine._runner.rounds = self._watched
        self._step(rounds + _MORE)
        self._graphs += self._watched.graph_ms
        self._idle += self._watched.idle_us

    def _step(self, rounds: int) -> None:
        first = sum(not record.chunk_rows for record in self._records)
        while sum(not record.chunk_rows for record in self._records) < first + rounds:
            self._engine.step()
        if self._noted:
            torch.cuda.synchronize(self._device)

    def forget(self) -> None:
        """What was before was warming up."""
        for kept in (self._periods, self._graphs, self._idle, self._records):
            kept.clear()

    @property
    def round_ms(self) -> float:
        """The median."""
        return middle(self._periods)

    def times(self, plain: float) -> RoundTimes:
        """What it came to, against plain steps of `plain` milliseconds."""
        rounds = [record for record in self._records if not record.chunk_rows]
        tokens = sum(record.emitted for record in rounds) / len(rounds)
        return RoundTimes(
            shape=self._words,
            round_ms=self.round_ms,
            of_plain=self.round_ms / plain,
            tokens_per_round=tokens / self._plan.batch,
            tokens_per_second=1e3 * tokens / self.round_ms,
            graph_ms=middle(self._graphs) if self._graphs else None,
            idle_us=middle(self._idle) if self._idle else None,
            mean_idle_us=fmean(self._idle) if self._idle else None,
            most_idle_us=max(self._idle, default=None),
            launches=dict(self._engine._runner.launches),
            simulation_us=self._simulation_us(),
        )

    def anatomy(self, limit_us: float) -> Anatomy:
        """Of the graph with the deepest draft."""
        assert self._watched is not None
        name = f"{self._plan.subject.name}, batch {self._plan.batch}, {self._words}"
        us = 1e3 * middle(self._graphs)
        return dissect(name, watch(self._watched.replay_deepest), us, limit_us)

    def _simulation_us(self) -> float | None:
        """What the forced walk takes as a part of a graph; an ordinary one is none of its own."""
        forced = self._walk
        if forced is None or self._device.type != "cuda":
            return None
        clock = GraphClock(forced.trial())
        return middle([clock() for _ in range(9)])


def _plain_bytes(decoder: Decoder, plan: RoundPlan) -> int:
    """What a plain step cannot but read: all matrices, and the keys and values of the context."""
    weights = sum(w.shape[0] * w.shape[1] * w.dtype.itemsize for w in decoder.weights())
    return weights + plan.batch * plan.context * decoder.cache_bytes_per_token
