"""EAGLE-2's choice of nodes: expand the best frontier level by level, then keep the best of all.

Li et al., arXiv 2406.16858, section 4. A chain is the case of width 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.speculation.tree import DraftTree


class Frontier(NamedTuple):
    """The nodes of one level whose children come next: F of them in each of S sequences."""

    numbers: Tensor
    """[S, F] int64, candidate numbers; 0 is the root, candidate i is number i + 1."""
    parents: Tensor
    """[S, F] int64, index within the frontier before."""
    tokens: Tensor
    """[S, F] int64, ids in the target's vocabulary."""
    scores: Tensor
    """[S, F] fp32, sum of the log probabilities on the path."""


class Expansion:
    """Collects the candidates of S sequences, `width` children of each frontier node a level."""

    def __init__(self, sequences: int, width: int, device: torch.device) -> None:
        self.width = width
        self._tokens: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._scores: list[Tensor] = []
        root = torch.zeros(sequences, 1, dtype=torch.int64, device=device)
        self.frontier = Frontier(root, root, root, torch.zeros(root.shape, device=device))

    def add(self, tokens: Tensor, gains: Tensor) -> None:
        """Hang children below the frontier and make the best `width` of them the next one.

        `tokens` [S, F, width] target ids; `gains` [S, F, width] fp32, log of the probability of a
        child given its parent. No child outscores its parent.
        """
        scores = (self.frontier.scores[..., None] + gains.clamp_max(0.0)).flatten(1)
        first = 1 + sum(part.shape[1] for part in self._tokens)
        self._tokens.append(tokens.flatten(1))
        self._parents.append(self.frontier.numbers.repeat_interleave(self.width, dim=1))
        self._scores.append(scores)
        best = _best(scores, self.width)
        self.frontier = Frontier(
            numbers=first + best,
            parents=best // self.width,
            tokens=self._tokens[-1].gather(1, best),
            scores=scores.gather(1, best),
        )

    def tree(self, nodes: int) -> DraftTree:
        """The best `nodes` candidates, numbered level by level.

        They are connected: a parent scores no less than its child and comes before it, and equal
        scores keep their order.
        """
        chosen = _best(torch.cat(self._scores, dim=1), nodes).sort(dim=1).values
        parents = torch.cat(self._parents, dim=1).gather(1, chosen)
        tokens = torch.cat(self._tokens, dim=1)
        number = tokens.new_zeros(len(tokens), 1 + tokens.shape[1])
        ascending = torch.arange(1, nodes + 1, device=tokens.device).expand_as(chosen)
        number.scatter_(1, chosen + 1, ascending)
        return DraftTree(tokens.gather(1, chosen), number.gather(1, parents))


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices [S, count] of the largest, in order; of equals the first."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
