"""The runner: one launch from rows to emitted tokens and the next draft."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.engine.launch import Launch, build, build_dense
from alula.engine.lines import Lines
from alula.engine.outputs import TokenLogprobs
from alula.engine.request import Sequence
from alula.engine.rounds import CapturedRounds, Flight, Outcome, Rounds, Size
from alula.engine.scheduler import Step
from alula.models.decoder import Decoder
from alula.ops.advance import Advanced, Mailbox
from alula.ops.kernels import kernels_for
from alula.ops.memory import memory_for
from alula.ops.prepare import Prepared
from alula.ops.rope import Rotation
from alula.ops.sample import Wants
from alula.sampling.logprobs import top_logprobs
from alula.sampling.sampler import check, find, sample
from alula.speculation.tree import NO_DRAFT, DraftTree, TreeShape
from alula.speculation.walk import Path, walk

if TYPE_CHECKING:
    from alula.engine.constraint import Constraint
    from alula.engine.drafting import Drafting


_LOWER = (
    "lower the rows of a launch (--max-sequences, the draft's nodes; chunk_rows in Python) or the "
    "cached tokens (--cache-tokens)"
)


class Emitted(NamedTuple):
    """What one sequence emitted in a launch."""

    tokens: list[int]
    stopped: bool
    """The last token is a stop token."""
    full: bool
    """The sequence has reached its limit."""
    nodes: int
    """Draft nodes that were verified."""
    drafted: int
    """Their deepest level."""
    accepted: int
    """Drafted tokens on the accepted path, before any cut."""
    logprobs: list[TokenLogprobs] | None
    failed: bool = False
    """Its grammar became too complex to be followed."""


class Runner:
    """Owns the device's tensors: the decoder's cache and the lines. Without drafting it drafts
    nothing, and a round is a plain step.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        lines: Lines,
        shape: TreeShape = NO_DRAFT,
        drafting: Drafting | None = None,
        constraint: Constraint | None = None,
        *,
        graphs: bool = False,
    ) -> None:
        """`graphs`: capture rounds as CUDA graphs, where the device is a GPU."""
        self._decoder = decoder
        self._pool = pool
        self._shape = shape
        self._drafting = drafting
        self._taps = drafting.taps if drafting else ()
        self._constraint = constraint
        self._pending = [0] * lines.count
        self.lines = lines
        self.rounds: Rounds | None = None
        if graphs and lines.device.type == "cuda":
            self.rounds = CapturedRounds(lines, self._round, chains=shape.is_chain)
        self.walk: Callable[[DraftTree, Tensor], Path] | None = None
        """Another way to accept drafts. `bench` alone puts one in, to time a given acceptance."""
        self.launches: Counter[str] = Counter()
        """Launches captured, and others by what stood in the way."""

    def run(self, step: Step, depth: int) -> list[Emitted]:
        """Run one launch and draft up to `depth` levels for what comes after it.

        Returns what the rounds and then the final chunks of `step` emitted, in order.
        """
        return self.collect(step, self.launch(step, depth))

    def launch(self, step: Step, depth: int) -> Flight:
        """Begin a launch; a captured one runs on without the host."""
        obstacle = self.obstacle(step)
        self.launches[obstacle or "captured"] += 1
        with memory_for("a launch", self.lines.device, _LOWER, note=_size(step)):
            launch = self._launch_tight if obstacle else self._launch_dense
            flight = launch(step, depth)
        for sequence in _emitting(step):
            self._pending[sequence.line] = min(depth, self._shape.depth)
        return flight

    def obstacle(self, step: Step) -> str | None:
        """Why a step is not launched as one captured round; None where it is."""
        if self.rounds is None:
            return "no graphs on this device"
        if step.chunks:
            return "prompt chunks"
        constraint = self._constraint
        if constraint and any(constraint.holds(sequence.line) for sequence in step.rounds):
            return "grammar"
        return None

    def collect(self, step: Step, flight: Flight) -> list[Emitted]:
        """What the rounds and then the final chunks of `step` emitted; waits for the launch."""
        with memory_for("what a launch brought", self.lines.device, _LOWER, note=_size(step)):
            return self._report(step, flight.outcome, flight.read())

    def _launch_dense(self, step: Step, depth: int) -> Flight:
        assert self.rounds is not None
        lines = [sequence.line for sequence in step.rounds]
        pending = max(self._pending[line] for line in lines)
        return self.rounds.launch(lines, pending, min(depth, self._shape.depth), self._wants(step))

    def _launch_tight(self, step: Step, depth: int) -> Flight:
        started, constraint = time.perf_counter(), self._constraint
        if constraint is not None:
            constraint.trim(step.rounds, self.lines)
        launch = build(step, self.lines, self._pool.page_size, self._shape)
        masks = None if constraint is None else constraint.begin(launch)

        def allow(logits: Tensor) -> Tensor:
            return (
                logits if constraint is None else constraint.apply(masks, launch, logits, started)
            )

        return Flight.of(self._compute(launch, self._wants(step), depth, allow))

    def _wants(self, step: Step) -> Wants:
        return self.lines.sampling.wants(sequence.line for sequence in _emitting(step))

    def _round(self, at: Tensor, size: Size, mailbox: Mailbox | None = None) -> Outcome:
        launch = build_dense(
            at, self.lines, self._angles, self._pool.page_size, self._shape, size.pending
        )
        return self._compute(launch, size.wants, size.depth, lambda logits: logits, mailbox)

    @cached_property
    def _angles(self) -> Rotation:
        """The rotations of all positions that a dense round may have rows at."""
        positions = self.lines.history.shape[1] + self._shape.depth
        return self._decoder.rotation(torch.arange(positions, device=self.lines.device))

    def _compute(
        self,
        launch: Launch,
        wants: Wants,
        depth: int,
        allow: Callable[[Tensor], Tensor],
        mailbox: Mailbox | None = None,
    ) -> Outcome:
        """A whole launch on the device; of a dense one nothing is read back on the way."""
        hidden = self._decoder.forward(
            launch.ids, launch.rows, self._pool, self._taps, launch.prepared
        )
        last = hidden.last
        if not launch.is_dense:
            last = last.of(launch.row_numbers[launch.nodes])
        # A head may be padded beyond the tokens that exist.
        logits = self._decoder.logits(last)[:, : self.lines.sampling.vocabulary]
        path, emission, columns = self._advance(launch, wants, allow(logits), mailbox)
        if not self._shape.is_chain:
            tables = launch.rows.page_table[: len(launch.last)]
            steps = path.rows[:, : self._shape.depth + 1]
            self._pool.commit(tables, launch.last, steps, emission.counts)
        if self._drafting is not None:
            self._drafting.follow(launch, path, emission, hidden.aux, depth, greedy=not wants.noise)
        return Outcome(launch, path, logits, columns)

    def _advance(
        self, launch: Launch, wants: Wants, logits: Tensor, mailbox: Mailbox | None
    ) -> Advanced:
        """From the logits of all nodes to what is emitted; the lines stand there then."""
        lines, state = launch.lines[: len(launch.last)], self.lines.state()
        kernels = kernels_for(lines.device)
        if launch.prepared is not None and self.walk is None:
            asked = _asked(launch.prepared)
            choice = find(logits, *asked, self.lines.sampling, wants)
            return kernels.advance(lines, state, choice, *launch.tree, launch.drafted, mailbox)
        path = (self.walk or walk)(launch.tree, self._choose(launch, wants, logits))
        return kernels.settle(lines, state, path, launch.drafted, mailbox)

    def _choose(self, launch: Launch, wants: Wants, logits: Tensor) -> Tensor:
        """The target's own token after every node, [E, N + 1]."""
        if launch.prepared is not None:
            chosen = sample(logits, *_asked(launch.prepared), self.lines.sampling, wants)
            return chosen.view_as(launch.row_numbers)
        sequences, nodes = launch.nodes
        choice = torch.full_like(launch.row_numbers, -1)
        choice[sequences, nodes] = sample(
            logits,
            launch.lines[sequences],
            launch.last[sequences] + launch.depths[sequences, nodes] + 1,
            launch.path[sequences, nodes],
            self.lines.sampling,
            wants,
        )
        return choice

    def _report(self, step: Step, outcome: Outcome, columns: list[list[int]]) -> list[Emitted]:
        report = []
        for number, (sequence, values) in enumerate(zip(_emitting(step), columns, strict=False)):
            nodes, levels, stopped, full, length, count, *tokens = values
            kept, wanted = tokens[:count], sequence.params.logprobs
            check(kept)
            report.append(
                Emitted(
                    tokens=kept,
                    stopped=bool(stopped),
                    full=bool(full),
                    nodes=nodes,
                    drafted=levels,
                    accepted=length - 1,
                    logprobs=None
                    if wanted is None
                    else self._logprobs(outcome, number, kept, wanted),
                    failed=self._fails(sequence.line, kept),
                )
            )
        return report

    def _fails(self, line: int, tokens: list[int]) -> bool:
        return self._constraint is not None and not self._constraint.advance(line, tokens)

    def _logprobs(
        self, outcome: Outcome, number: int, tokens: list[int], alternatives: int
    ) -> list[TokenLogprobs]:
        present = outcome.launch.row_numbers >= 0
        indices = present.flatten().cumsum(0).view_as(present) - 1
        logits = outcome.logits[indices[number, outcome.path.rows[number, : len(tokens)]]]
        found = top_logprobs(logits, torch.tensor(tokens, device=logits.device), alternatives)
        likeliest = zip(found.ids.tolist(), found.values.tolist(), strict=True)
        return [
            TokenLogprobs(token, logprob, list(zip(ids, values, strict=True)))
            for token, logprob, (ids, values) in zip(
                tokens, found.chosen.tolist(), likeliest, strict=True
            )
        ]


def _size(step: Step) -> str:
    rows = sum(chunk.end - chunk.start for chunk in step.chunks)
    return f"it is of {len(step.rounds)} sequences and {rows} prompt tokens"


def _emitting(step: Step) -> list[Sequence]:
    """The sequences that choose tokens, in order: rounds, then final chunks."""
    return [*step.rounds, *(chunk.sequence for chunk in step.chunks if chunk.final)]


def _asked(prepared: Prepared) -> tuple[Tensor, Tensor, Tensor]:
    """What the sampler wants to know of a dense launch's rows: line, position and path of each."""
    return prepared.lines, prepared.following, prepared.path.flatten(0, 1)
