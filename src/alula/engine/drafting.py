"""Keeping a drafter in step with the target: after each launch it is fed what was committed."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from alula.engine.features import PageFeatures
from alula.engine.launch import Launch
from alula.engine.lines import Lines
from alula.ops.advance import Emission
from alula.ops.catch_up import Committed
from alula.ops.expand import Drafts, Roots
from alula.speculation.drafter import DraftContext, Drafter, Round
from alula.speculation.walk import Path


class _Features(NamedTuple):
    """Target features of F committed positions, by sequence and position."""

    values: Tensor | None
    sequences: Tensor
    positions: Tensor


class Drafting:
    """One drafter over the lines of a runner."""

    def __init__(self, drafter: Drafter, lines: Lines, pages: int, page_size: int) -> None:
        self._drafter = drafter
        self._lines = lines
        self._page_size = page_size
        self._page_features = PageFeatures(pages, page_size)
        self.taps = drafter.taps
        self.seconds_per_level = 0.0

    def follow(
        self,
        launch: Launch,
        path: Path,
        emission: Emission,
        aux: tuple[Tensor, ...],
        depth: int,
        *,
        greedy: bool,
    ) -> None:
        """Feed the drafter and keep its new drafts, up to `depth` levels deep.

        `aux`: the target's states [R, h] at the launch's rows, one for each tap. `greedy`: no
        sequence that emits is above temperature 0.
        """
        started = time.perf_counter()
        if launch.is_dense:
            self._drafter.draft_on(self._round(launch, path, emission, aux, greedy), depth)
        else:
            self._propose(launch, path, emission, aux, depth, greedy)
        if depth and len(launch.chunks) == 0:
            self._learn((time.perf_counter() - started) / depth)

    def _round(
        self, launch: Launch, path: Path, emission: Emission, aux: tuple[Tensor, ...], greedy: bool
    ) -> Round:
        lines = self._lines
        steps = min(path.rows.shape[1], launch.path.shape[2] + 1)
        return Round(
            committed=Committed(
                lines=launch.lines,
                history=lines.history,
                page_table=launch.rows.page_table,
                last=launch.last,
                path=path.rows[:, :steps],
                counts=emission.counts,
            ),
            roots=Roots(
                lines=launch.lines,
                lengths=lines.lengths,
                limits=lines.limits,
                keys=lines.sampling.key,
                temperatures=lines.sampling.temperature,
                page_table=launch.rows.page_table,
            ),
            aux=aux,
            page_features=self._page_features.room_for(*aux) if aux else None,
            drafts=Drafts(lines.draft_tokens, lines.draft_parents),
            greedy=greedy,
        )

    def _propose(
        self,
        launch: Launch,
        path: Path,
        emission: Emission,
        aux: tuple[Tensor, ...],
        depth: int,
        greedy: bool,
    ) -> None:
        lines, features = self._lines, self._features(launch, path, emission, aux)
        drafting = (~(emission.stopped | emission.full)).nonzero()[:, 0]
        context = DraftContext(
            history=lines.history[launch.lines],
            lengths=lines.lengths[launch.lines],
            page_table=launch.rows.page_table,
            keys=lines.sampling.key[launch.lines],
            temperatures=lines.sampling.temperature[launch.lines],
            features=features.values,
            feature_sequences=features.sequences,
            feature_positions=features.positions,
            drafting=drafting,
            latest=torch.searchsorted(features.sequences, drafting, right=True) - 1,
            greedy=greedy,
        )
        lines.keep_draft(launch.lines, self._drafter.propose(context, depth))

    def _learn(self, seconds: float) -> None:
        known = self.seconds_per_level
        self.seconds_per_level = 0.9 * known + 0.1 * seconds if known else seconds

    def _features(
        self, launch: Launch, path: Path, emission: Emission, aux: tuple[Tensor, ...]
    ) -> _Features:
        """Features of all positions that this launch committed, and of those before prefix hits."""
        rows, positions = _committed(launch, path, emission)
        sequences = launch.rows.sequences[rows]
        if not aux:
            return _Features(None, sequences, positions)
        tables = launch.rows.page_table[sequences]
        values = torch.cat([part[rows] for part in aux], dim=-1)
        self._page_features.keep(values, tables, positions)
        return self._with_hits(launch, values, sequences, positions)

    def _with_hits(
        self, launch: Launch, values: Tensor, sequences: Tensor, positions: Tensor
    ) -> _Features:
        """Put the feature of a reused page's last position before a prefix hit's first row."""
        if not launch.hits:
            return _Features(values, sequences, positions)
        numbers = torch.tensor([number for number, _ in launch.hits], device=positions.device)
        before = torch.tensor([start - 1 for _, start in launch.hits], device=positions.device)
        pages = launch.rows.page_table[numbers, before // self._page_size]
        order = torch.cat((numbers, sequences)).sort(stable=True).indices
        return _Features(
            torch.cat((self._page_features.of(pages), values))[order],
            torch.cat((numbers, sequences))[order],
            torch.cat((before, positions))[order],
        )


def _committed(launch: Launch, path: Path, emission: Emission) -> tuple[Tensor, Tensor]:
    """Rows that stay, by sequence, and their positions: accepted paths, then chunks."""
    rounds = len(launch.lines) - len(launch.chunks)
    at = torch.arange(path.rows.shape[1], device=path.rows.device)
    sequence, step = (at < emission.counts[:rounds, None]).nonzero(as_tuple=True)
    rows = launch.row_numbers[sequence, path.rows[sequence, step]]
    size = sum(chunk.end - chunk.start for chunk in launch.chunks)
    known = torch.arange(len(launch.ids) - size, len(launch.ids), device=at.device)
    return (
        torch.cat((rows, known)),
        torch.cat((launch.last[sequence] + step, launch.rows.positions[known])),
    )
