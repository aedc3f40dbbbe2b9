"""The accepted length that a drafter would reach on text the target wrote greedily.

On such text every accepted draft is the text itself. What a chain would have drafted at any place
is therefore what the unrolled steps predict there, and walking over their hits gives the same
rounds that decoding would have had, at the cost of one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alula.training.corpus import Batch
from alula.training.network import DraftNetwork
from alula.training.target import DenseTarget


class Walked(NamedTuple):
    """Rounds over some text."""

    rounds: int
    emitted: int
    drafted: NDArray[np.int64]
    """By depth: rounds that accepted all depths above."""
    accepted: NDArray[np.int64]
    """By depth."""

    def plus(self, other: Walked) -> Walked:
        """Both together."""
        return Walked(
            self.rounds + other.rounds,
            self.emitted + other.emitted,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    @property
    def tau(self) -> float:
        """Accepted length, the bonus token included."""
        return self.emitted / self.rounds if self.rounds else 1.0

    @property
    def acceptance(self) -> list[float]:
        """Conditional, by depth."""
        return [float(a / d) for a, d in zip(self.accepted, self.drafted, strict=True) if d]


class Judge:
    """Looks over greedy text with a network that is still learning."""

    def __init__(
        self, target: DenseTarget, taps: tuple[int, ...], draft_ids: Tensor, depth: int
    ) -> None:
        self._target = target
        self._taps = taps
        self._draft_ids = draft_ids
        self._depth = depth

    @torch.no_grad()
    def hits(self, network: DraftNetwork, batch: Batch) -> Tensor:
        """[B, n - 1, depth] bool: whether step j of pair t foretells the token at t + 2 + j."""
        features = self._target.features(batch.tokens, self._taps).aux[:, :-1]
        embed = self._target.decoder.embed
        found = torch.zeros(*features.shape[:2], self._depth, dtype=torch.bool)
        roots = batch.mask[:, 1:].nonzero(as_tuple=True)
        sequences, pairs = (part.cpu() for part in roots)
        for step, hidden in enumerate(network.unroll(features, batch.tokens, embed, self._depth)):
            drafted = self._draft_ids[network.logits(hidden[roots]).argmax(-1)].cpu()
            after = torch.nn.functional.pad(batch.tokens.cpu(), (0, self._depth + 2), value=-1)
            found[sequences, pairs, step] = drafted == after[sequences, pairs + 2 + step]
        return found

    def walk(self, network: DraftNetwork, batches: Iterable[Batch]) -> Walked:
        """Rounds of a chain of this depth over the answers of all batches."""
        total = Walked(0, 0, np.zeros(self._depth, np.int64), np.zeros(self._depth, np.int64))
        for batch in batches:
            hits = self.hits(network, batch)
            for line in range(len(hits)):
                for start, end in spans(batch.mask[line].tolist()):
                    part = walk(hits[line].numpy(), start, end)
                    total = total.plus(part)
        return total


def walk(hits: NDArray[np.bool_], start: int, end: int) -> Walked:
    """Rounds over the answer at positions start … end - 1; its first token comes from the prompt.

    `hits` [n, depth] of one sequence.
    """
    depth = hits.shape[1]
    rounds = emitted = 0
    drafted, accepted = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    root = start
    while root < end - 1:
        run = int(np.argmin([*hits[root - 1], False]))
        drafted[: min(run + 1, depth)] += 1
        accepted[:run] += 1
        new = min(run + 1, end - 1 - root)
        rounds, emitted, root = rounds + 1, emitted + new, root + new
    return Walked(rounds, emitted, drafted, accepted)


def spans(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Begin and end of each stretch of tokens that bear loss."""
    edges = np.flatnonzero(np.diff(np.array([False, *mask, False], np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
