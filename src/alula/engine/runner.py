"""The runner: one launch from rows to emitted tokens and the next draft."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.engine.launch import Launch, build, build_dense
from alula.engine.lines import Emission, Lines
from alula.engine.outputs import TokenLogprobs
from alula.engine.request import Sequence
from alula.engine.rounds import CapturedRounds, Flight, Outcome, Rounds, Size
from alula.engine.scheduler import Step
from alula.models.decoder import Decoder
from alula.ops.sample import Wants
from alula.sampling.logprobs import top_logprobs
from alula.sampling.sampler import check, sample
from alula.speculation.tree import NO_DRAFT, DraftTree, TreeShape
from alula.speculation.walk import Path, walk

if TYPE_CHECKING:
    from alula.engine.constraint import Constraint
    from alula.engine.drafting import Drafting


@dataclass(frozen=True)
class Emitted:
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
            self.rounds = CapturedRounds(lines, self._round)
        self.walk: Callable[[DraftTree, Tensor], Path] = walk
        """How a draft is accepted. `bench` alone puts another in, to time a given acceptance."""
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
        flight = self._launch_tight(step, depth) if obstacle else self._launch_dense(step, depth)
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

        outcome = self._compute(launch, self._wants(step), depth, allow)
        return Flight(outcome, outcome.columns, None)

    def _wants(self, step: Step) -> Wants:
        return self.lines.sampling.wants(sequence.line for sequence in _emitting(step))

    def _round(self, at: Tensor, size: Size) -> Outcome:
        launch = build_dense(at, self.lines, self._pool.page_size, self._shape, size.pending)
        return self._compute(launch, size.wants, size.depth, lambda logits: logits)

    def _compute(
        self, launch: Launch, wants: Wants, depth: int, allow: Callable[[Tensor], Tensor]
    ) -> Outcome:
        """A whole launch on the device; of a dense one nothing is read back on the way."""
        lines, rows = self.lines, launch.row_numbers[launch.nodes]
        hidden = self._decoder.forward(launch.ids, launch.rows, self._pool, self._taps)
        # A head may be padded beyond the tokens that exist.
        logits = self._decoder.logits(hidden.last.of(rows))[:, : lines.sampling.vocabulary]
        path = self.walk(launch.tree, self._choose(launch, wants, allow(logits)))
        emitting = launch.lines[: len(launch.last)]
        emission = lines.cut(emitting, path.tokens, path.length)
        if not self._shape.is_chain:
            tables = launch.rows.page_table[: len(emitting)]
            steps = path.rows[:, : self._shape.depth + 1]
            self._pool.commit(tables, launch.last, steps, emission.counts)
        lines.append(emitting, emission)
        if self._drafting is not None:
            self._drafting.follow(launch, path, emission, hidden.aux, depth, greedy=not wants.noise)
        return Outcome(launch, path, logits, _columns(launch, path, emission))

    def _choose(self, launch: Launch, wants: Wants, logits: Tensor) -> Tensor:
        """The target's own token after every node, [E, N + 1]."""
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


def _emitting(step: Step) -> list[Sequence]:
    """The sequences that choose tokens, in order: rounds, then final chunks."""
    return [*step.rounds, *(chunk.sequence for chunk in step.chunks if chunk.final)]


def _columns(launch: Launch, path: Path, emission: Emission) -> Tensor:
    """What the host wants to know of E sequences in one piece, [E, 6 + A] int64."""
    nodes = (launch.tree.tokens >= 0).sum(dim=1)
    told = (nodes, launch.levels, emission.stopped, emission.full, path.length, emission.counts)
    return torch.cat((torch.stack(told, dim=1), emission.tokens), dim=1)
