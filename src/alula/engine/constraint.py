"""Masks for the constrained sequences of a launch, computed while the target's layers run."""

from __future__ import annotations

import time
from collections.abc import Sequence as Tokens
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from alula.engine.launch import Launch
from alula.engine.lines import Lines
from alula.engine.request import Sequence
from alula.sampling.grammar import Grammars, Matcher, apply_masks

_MEMORY = 0.9
"""Of a mean that follows the cost of masks and launches."""


class _Masks(NamedTuple):
    """Which tokens some rows of the logits may choose, and which nodes have to go."""

    rows: Tensor
    """[K] int64."""
    allowed: Tensor
    """[K, W] int32."""
    pruned: list[tuple[int, int]]
    """Sequence number and node."""


class Constraint:
    """The matchers of the lines that have one."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self._matchers: dict[int, Matcher] = {}
        self._thread = ThreadPoolExecutor(1, "masks")
        self._mask_seconds = 0.0
        self._launch_seconds = 0.0

    def admit(self, sequence: Sequence) -> None:
        """Begin a sequence on its line, at the start or after it gave way."""
        self._matchers.pop(sequence.line, None)
        if sequence.params.grammar is not None:
            matcher = self.grammars.matcher(sequence.params.grammar, sequence.output_ids)
            self._matchers[sequence.line] = matcher

    def holds(self, line: int) -> bool:
        """Whether a line has a matcher."""
        return line in self._matchers

    def trim(self, rounds: Tokens[Sequence], lines: Lines) -> None:
        """Leave out draft nodes whose masks would take longer than the launch they wait for."""
        constrained = [sequence.line for sequence in rounds if sequence.line in self._matchers]
        if constrained and self._mask_seconds:
            most = int(self._launch_seconds / self._mask_seconds / len(constrained)) - 1
            for line in constrained:
                lines.draft_tokens[line, max(most, 1) :] = -1

    def begin(self, launch: Launch) -> Future[_Masks] | None:
        """Start on the masks of a launch; None where no sequence of it has a matcher."""
        emitting = launch.lines[: len(launch.row_numbers)].tolist()
        numbers = [n for n, line in enumerate(emitting) if line in self._matchers]
        if not numbers:
            return None
        return self._thread.submit(self._compute, launch, emitting, numbers)

    def _compute(self, launch: Launch, emitting: list[int], numbers: list[int]) -> _Masks:
        started = time.perf_counter()
        present = launch.row_numbers >= 0
        order = (present.flatten().cumsum(0).view_as(present) - 1).tolist()
        tokens, parents = launch.tree.tokens.tolist(), launch.tree.parents.tolist()
        nodes = launch.row_numbers.shape[1]
        filled = torch.empty(len(numbers), nodes, self.grammars.words, dtype=torch.int32)
        rows: list[int] = []
        places: list[int] = []
        pruned: list[tuple[int, int]] = []
        for place, number in enumerate(numbers):
            matcher = self._matchers[emitting[number]]
            found = matcher.fill(filled[place], tokens[number], parents[number])
            rows += [order[number][node] for node in found.reached]
            places += [place * nodes + node for node in found.reached]
            pruned += [(number, node) for node in found.pruned]
        seconds = (time.perf_counter() - started) / max(len(places), 1)
        self._mask_seconds = _mean(self._mask_seconds, seconds)
        return _Masks(_indices(rows), filled.flatten(0, 1)[_indices(places)], pruned)

    def apply(
        self, pending: Future[_Masks] | None, launch: Launch, logits: Tensor, started: float
    ) -> Tensor:
        """Logits [R, V] with forbidden tokens at -inf; `started`: when the launch began.

        Nodes of the launch's tree after which nobody knows what is allowed are taken out of it.
        """
        if pending is None:
            return logits
        self._launch_seconds = _mean(self._launch_seconds, time.perf_counter() - started)
        masks = pending.result()
        for number, node in masks.pruned:
            launch.tree.tokens[number, node - 1] = -1
        device = logits.device
        return apply_masks(logits, masks.rows.to(device), masks.allowed.to(device))

    def advance(self, line: int, tokens: Tokens[int]) -> bool:
        """Follow what a line emitted; whether its grammar can still be followed."""
        matcher = self._matchers.get(line)
        if matcher is None:
            return True
        matcher.advance(tokens)
        return not matcher.failed


def _indices(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _mean(known: float, new: float) -> float:
    return _MEMORY * known + (1 - _MEMORY) * new if known else new
