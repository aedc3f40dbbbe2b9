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
from alula.speculation.drafter import DraftContext, Drafter
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
        aux: Tensor | None,
        depth: int,
        *,
        greedy: bool,
    ) -> None:
        """Feed the drafter and keep its new drafts, up to `depth` levels deep.

        `aux` [R, taps * h]: the target's states at the launch's rows. `greedy`: no sequence that
        emits is above temperature 0.
        """
        started = time.perf_counter()
        features = self._features(launch, path, emission, aux)
        lines, ended = self._lines, emission.stopped | emission.full
        if launch.is_dense:
            drafting = torch.arange(len(ended), device=ended.device)
            latest = drafting * _steps(launch, path) + (emission.counts - 1).clamp_min(0)
        else:
            drafting = (~ended).nonzero()[:, 0]
            latest = torch.searchsorted(features.sequences, drafting, right=True) - 1
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
            latest=latest,
            greedy=greedy,
        )
        tree = self._drafter.propose(context, depth)
        if launch.is_dense:
            tree = tree._replace(tokens=tree.tokens.masked_fill(ended[:, None], -1))
        lines.keep_draft(launch.lines, tree)
        if depth and len(launch.chunks) == 0:
            self._learn((time.perf_counter() - started) / depth)

    def _learn(self, seconds: float) -> None:
        known = self.seconds_per_level
        self.seconds_per_level = 0.9 * known + 0.1 * seconds if known else seconds

    def _features(
        self, launch: Launch, path: Path, emission: Emission, aux: Tensor | None
    ) -> _Features:
        """Features of all positions that this launch committed, and of those before prefix hits."""
        rows, positions = _committed(launch, path, emission)
        sequences = launch.rows.sequences[rows]
        if aux is None:
            return _Features(None, sequences, positions)
        tables = launch.rows.page_table[sequences]
        self._page_features.keep(aux[rows], tables, positions)
        return self._with_hits(launch, aux[rows], sequences, positions)

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


def _steps(launch: Launch, path: Path) -> int:
    """The longest path a dense launch may accept, the root counted."""
    return min(path.rows.shape[1], launch.path.shape[2] + 1)


def _committed(launch: Launch, path: Path, emission: Emission) -> tuple[Tensor, Tensor]:
    """Rows that stay, by sequence, and their positions: accepted paths, then chunks.

    Of a dense launch those too that a path might have had: what is kept of them lies behind the
    sequence's end, to be overwritten before it is read.
    """
    if launch.is_dense:
        nodes = path.rows[:, : _steps(launch, path)].clamp_min(0)
        step = torch.arange(nodes.shape[1], device=nodes.device)
        rows = launch.row_numbers.gather(1, nodes)
        return rows.flatten(), (launch.last[:, None] + step).flatten()
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
