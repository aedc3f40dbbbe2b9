"""The runner: one launch from rows to emitted tokens and the next draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.engine.features import PageFeatures
from alula.engine.launch import Launch, build
from alula.engine.lines import Emission, Lines
from alula.engine.scheduler import Step
from alula.models.decoder import Decoder
from alula.sampling.logprobs import TokenLogprobs, top_logprobs
from alula.sampling.sampler import sample
from alula.speculation.drafter import DraftContext, Drafter
from alula.speculation.tree import TreeShape
from alula.speculation.walk import Path, walk

NO_DRAFT = TreeShape(depth=0, width=1, nodes=0)


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


class _Features(NamedTuple):
    """Target features of committed positions, by sequence and position."""

    values: Tensor
    sequences: Tensor
    positions: Tensor


class Runner:
    """Owns the device's tensors: the decoder's cache, the lines and the drafter."""

    def __init__(
        self, decoder: Decoder, pool: KVPool, lines: Lines, drafter: Drafter | None
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._drafter = drafter
        self.lines = lines
        self._taps = drafter.taps if drafter else ()
        self._page_features = PageFeatures(pool.pages, pool.page_size) if self._taps else None

    def run(self, step: Step, depth: int) -> list[Emitted]:
        """Run one launch and draft up to `depth` levels for what comes after it.

        Returns what the rounds and then the final chunks of `step` emitted, in order.
        """
        shape = self._drafter.shape if self._drafter else NO_DRAFT
        launch = build(step, self.lines, self._pool.page_size, shape)
        hidden = self._decoder.forward(launch.ids, launch.rows, self._pool, self._taps)
        choice, logits = self._choose(launch, hidden.last)
        path = walk(launch.tree, choice)
        lines = launch.lines[: len(choice)]
        emission = self.lines.cut(lines, path.tokens, path.length)
        if not shape.is_chain:
            self._commit(launch, path, emission)
        self.lines.append(lines, emission)
        if self._drafter is not None:
            self._draft(self._drafter, launch, path, emission, hidden.aux, depth)
        return self._report(step, launch, path, emission, logits)

    def _choose(self, launch: Launch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The target's own token after every node [E, N + 1], and the logits it came from."""
        choice = torch.full_like(launch.row_numbers, -1)
        sequence, node = (launch.row_numbers >= 0).nonzero(as_tuple=True)
        logits = self._decoder.logits(hidden[launch.row_numbers[sequence, node]])
        choice[sequence, node] = sample(
            logits,
            launch.lines[sequence],
            launch.last[sequence] + launch.depths[sequence, node] + 1,
            launch.path[sequence, node],
            self.lines.sampling,
        )
        return choice, logits

    def _commit(self, launch: Launch, path: Path, emission: Emission) -> None:
        """Move the accepted nodes' keys and values to where their positions belong."""
        at = torch.arange(path.rows.shape[1], device=path.rows.device)
        moved = (at < emission.counts[:, None]) & (path.rows != at)
        sequence, step = moved.nonzero(as_tuple=True)
        lines, last = launch.lines[sequence], launch.last[sequence]
        size = self._pool.page_size
        source = self.lines.slots(lines, last + path.rows[sequence, step], size)
        self._pool.move(source, self.lines.slots(lines, last + step, size))

    def _draft(
        self,
        drafter: Drafter,
        launch: Launch,
        path: Path,
        emission: Emission,
        aux: Tensor | None,
        depth: int,
    ) -> None:
        features = self._features(launch, path, emission, aux)
        context = DraftContext(
            history=self.lines.history[launch.lines],
            lengths=self.lines.lengths[launch.lines],
            page_table=launch.rows.page_table,
            keys=self.lines.sampling.key[launch.lines],
            temperatures=self.lines.sampling.temperature[launch.lines],
            features=features.values if self._taps else None,
            feature_sequences=features.sequences,
            feature_positions=features.positions,
            drafting=(~(emission.stopped | emission.full)).nonzero()[:, 0],
        )
        self.lines.keep_draft(launch.lines, drafter.propose(context, depth))

    def _features(
        self, launch: Launch, path: Path, emission: Emission, aux: Tensor | None
    ) -> _Features:
        """Features of all positions committed by this launch, and before a prefix hit's rest."""
        at = torch.arange(path.rows.shape[1], device=path.rows.device)
        rounds = len(launch.lines) - len(launch.chunks)
        kept = at < emission.counts[:rounds, None]
        sequence, step = kept.nonzero(as_tuple=True)
        taken = launch.row_numbers[sequence, path.rows[sequence, step]]
        known = torch.arange(
            int(launch.row_numbers[:rounds].amax()) + 1 if rounds else 0,
            len(launch.ids),
            device=at.device,
        )
        taken = torch.cat((taken, known))
        sequences = launch.rows.sequences[taken]
        positions = torch.cat((launch.last[sequence] + step, launch.rows.positions[known]))
        if aux is None or self._page_features is None:
            return _Features(positions[:0], sequences[:0], positions[:0])
        values = aux[taken]
        table = launch.rows.page_table
        self._page_features.keep(values, table[sequences], positions)
        return self._with_carried(launch, _Features(values, sequences, positions))

    def _with_carried(self, launch: Launch, features: _Features) -> _Features:
        """Put the feature before a prefix hit's first row in front of it."""
        assert self._page_features is not None
        rounds = len(launch.lines) - len(launch.chunks)
        hits = [
            (rounds + number, chunk)
            for number, chunk in enumerate(launch.chunks)
            if chunk.start and chunk.sequence in admitted
        ]
        if not hits:
            return features
        device = features.positions.device
        pages = [chunk.sequence.pages[chunk.start // self._pool.page_size - 1] for _, chunk in hits]
        sequences = torch.tensor([number for number, _ in hits], device=device)
        positions = torch.tensor([chunk.start - 1 for _, chunk in hits], device=device)
        joined = _Features(
            torch.cat((self._page_features.of(pages), features.values)),
            torch.cat((sequences, features.sequences)),
            torch.cat((positions, features.positions)),
        )
        order = joined.sequences.sort(stable=True).indices
        return _Features(*(part[order] for part in joined))

    def _report(
        self, step: Step, launch: Launch, path: Path, emission: Emission, logits: Tensor
    ) -> list[Emitted]:
        sequences = [*step.rounds, *(chunk.sequence for chunk in launch.chunks if chunk.final)]
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
                )
            )
        return report

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
        chosen = torch.tensor(tokens, device=logits.device)
        return top_logprobs(logits[rows], chosen, alternatives)
