"""The runner: one launch from rows to emitted tokens and the next draft."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.engine.launch import Launch, build
from alula.engine.lines import Emission, Lines
from alula.engine.outputs import TokenLogprobs
from alula.engine.request import Sequence
from alula.engine.scheduler import Step
from alula.models.decoder import Decoder
from alula.sampling.logprobs import top_logprobs
from alula.sampling.sampler import check, sample
from alula.speculation.tree import NO_DRAFT, TreeShape
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
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._shape = shape
        self._drafting = drafting
        self._taps = drafting.taps if drafting else ()
        self._constraint = constraint
        self.lines = lines

    def run(self, step: Step, depth: int) -> list[Emitted]:
        """Run one launch and draft up to `depth` levels for what comes after it.

        Returns what the rounds and then the final chunks of `step` emitted, in order.
        """
        started, constraint = time.perf_counter(), self._constraint
        if constraint is not None:
            constraint.trim(step.rounds, self.lines)
        launch = build(step, self.lines, self._pool.page_size, self._shape)
        masks = None if constraint is None else constraint.begin(launch)
        hidden = self._decoder.forward(launch.ids, launch.rows, self._pool, self._taps)
        logits = self._logits(launch, hidden.last)
        allowed = logits if constraint is None else constraint.apply(masks, launch, logits, started)
        choice = self._choose(step, launch, allowed)
        path = walk(launch.tree, choice)
        check(path.tokens[path.rows >= 0])
        lines = launch.lines[: len(choice)]
        emission = self.lines.cut(lines, path.tokens, path.length)
        if not self._shape.is_chain:
            tables = launch.rows.page_table[: len(choice)]
            steps = path.rows[:, : self._shape.depth + 1]
            self._pool.commit(tables, launch.last, steps, emission.counts)
        self.lines.append(lines, emission)
        if self._drafting is not None:
            self._drafting.follow(launch, path, emission, hidden.aux, depth)
        return self._report(step, launch, path, emission, logits)

    def _logits(self, launch: Launch, hidden: Tensor) -> Tensor:
        """Of every node that exists, sequence by sequence, [R, V]."""
        # A head may be padded beyond the tokens that exist.
        vocabulary = self.lines.sampling.vocabulary
        rows = launch.row_numbers[launch.row_numbers >= 0]
        return self._decoder.logits(hidden[rows])[:, :vocabulary]

    def _choose(self, step: Step, launch: Launch, logits: Tensor) -> Tensor:
        """The target's own token after every node, [E, N + 1]."""
        choice = torch.full_like(launch.row_numbers, -1)
        sequence, node = (launch.row_numbers >= 0).nonzero(as_tuple=True)
        choice[sequence, node] = sample(
            logits,
            launch.lines[sequence],
            launch.last[sequence] + launch.depths[sequence, node] + 1,
            launch.path[sequence, node],
            self.lines.sampling,
            self.lines.sampling.wants(sequence.line for sequence in _emitting(step, launch)),
        )
        return choice

    def _report(
        self, step: Step, launch: Launch, path: Path, emission: Emission, logits: Tensor
    ) -> list[Emitted]:
        sequences = _emitting(step, launch)
        levels = torch.where(launch.row_numbers >= 0, launch.depths, 0).amax(dim=1).tolist()
        nodes = (launch.row_numbers >= 0).sum(dim=1) - 1
        columns = (nodes, emission.stopped, emission.full, path.length, emission.counts)
        verified, stopped, full, lengths, counts = (column.tolist() for column in columns)
        tokens = emission.tokens.tolist()
        report = []
        for number, sequence in enumerate(sequences):
            kept = tokens[number][: counts[number]]
            wanted = sequence.params.logprobs
            report.append(
                Emitted(
                    tokens=kept,
                    stopped=stopped[number],
                    full=full[number],
                    nodes=verified[number],
                    drafted=levels[number],
                    accepted=lengths[number] - 1,
                    logprobs=None
                    if wanted is None
                    else self._logprobs(launch, path, logits, number, kept, wanted),
                    failed=self._fails(sequence.line, kept),
                )
            )
        return report

    def _fails(self, line: int, tokens: list[int]) -> bool:
        return self._constraint is not None and not self._constraint.advance(line, tokens)

    def _logprobs(
        self,
        launch: Launch,
        path: Path,
        logits: Tensor,
        number: int,
        tokens: list[int],
        alternatives: int,
    ) -> list[TokenLogprobs]:
        present = launch.row_numbers >= 0
        indices = present.flatten().cumsum(0).view_as(present) - 1
        rows = indices[number, path.rows[number, : len(tokens)]]
        found = top_logprobs(logits[rows], torch.tensor(tokens, device=logits.device), alternatives)
        likeliest = zip(found.ids.tolist(), found.values.tolist(), strict=True)
        return [
            TokenLogprobs(token, logprob, list(zip(ids, values, strict=True)))
            for token, logprob, (ids, values) in zip(
                tokens, found.chosen.tolist(), likeliest, strict=True
            )
        ]


def _emitting(step: Step, launch: Launch) -> list[Sequence]:
    """The sequences that choose tokens, in order: rounds, then final chunks."""
    return [*step.rounds, *(chunk.sequence for chunk in launch.chunks if chunk.final)]
