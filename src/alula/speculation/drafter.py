"""What a drafter is, and what it may look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops.catch_up import Committed
from alula.ops.expand import Drafts, Roots, keep
from alula.speculation.tree import DraftTree, TreeShape


class DraftContext(NamedTuple):
    """The state of S sequences after a launch, as device tensors.

    A sequence knows `lengths` tokens; the last of them is its root, which the target has not
    computed yet, at position lengths - 1. Draft node i takes the slot of logical position
    lengths - 1 + i in the page table.
    """

    history: Tensor
    """[S, L] int64, token ids by position; beyond `lengths` undefined."""
    lengths: Tensor
    """[S] int64."""
    page_table: Tensor
    """[S, P] int64."""
    keys: Tensor
    """[S] int64, noise keys."""
    temperatures: Tensor
    """[S] fp32."""
    features: Tensor | None
    """[F, taps * h], the target's states at positions this launch committed; None: no taps."""
    feature_sequences: Tensor
    """[F] int64, ascending from 0 to S - 1; a sequence's features ascend by position."""
    feature_positions: Tensor
    """[F] int64."""
    drafting: Tensor
    """[S'] int64, ascending: the sequences that get a draft. The others are only followed."""
    latest: Tensor
    """[S'] int64, which of the F features is of the root's predecessor, where there are any."""
    greedy: bool
    """All of these sequences are known to be at temperature 0."""


class Round(NamedTuple):
    """What a dense launch of S sequences leaves to a drafter, on the device."""

    committed: Committed
    roots: Roots
    aux: tuple[Tensor, ...]
    """[S * (N + 1), h] each, the target's states at all nodes, one for each tap."""
    page_features: Tensor | None
    """[pages, taps * h], where those are kept that end a page; there if there are any."""
    drafts: Drafts
    """Where the drafts go that the next round verifies."""
    greedy: bool
    """All of these sequences are known to be at temperature 0."""

    def without_features(self) -> DraftContext:
        """For drafters that look at the history alone."""
        lines = self.roots.lines
        numbers = torch.arange(len(lines), device=lines.device)
        return DraftContext(
            history=self.committed.history[lines],
            lengths=self.roots.lengths[lines],
            page_table=self.roots.page_table,
            keys=self.roots.keys[lines],
            temperatures=self.roots.temperatures[lines],
            features=None,
            feature_sequences=numbers[:0],
            feature_positions=numbers[:0],
            drafting=numbers,
            latest=numbers,
            greedy=self.greedy,
        )


class Drafter(ABC):
    """Proposes the tokens that the target is likely to choose next."""

    taps: tuple[int, ...] = ()
    """Decoder layers whose input the drafter needs as features."""

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape

    @abstractmethod
    def allocate(self, pages: int, page_size: int, sequences: int, device: torch.device) -> None:
        """Make room for keys and values under the target's page numbers, if the drafter has any.

        `sequences` draft together at most.
        """

    @abstractmethod
    def propose(self, context: DraftContext, depth: int) -> DraftTree:
        """Follow all sequences; draft up to `depth` levels (0: none) for those that want it.

        Returns a tree for all S sequences in the drafter's shape cut to `depth`, token -1 where
        nothing is drafted.
        """

    def draft_on(self, round_: Round, depth: int) -> None:
        """As `propose` after a dense launch, all of whose sequences draft; keeps the drafts."""
        assert not round_.aux, "a drafter with taps follows them"
        keep(round_.roots, round_.drafts, *self.propose(round_.without_features(), depth))
