"""Prompt lookup: draft what followed the last words the previous time they occurred."""

from __future__ import annotations

import torch
from torch import Tensor

from alula.errors import UsageError
from alula.speculation.drafter import DraftContext, Drafter
from alula.speculation.tree import DraftTree, TreeShape, chain


class NgramDrafter(Drafter):
    """Finds the latest n-gram earlier in a sequence and proposes the tokens after it.

    Longer n-grams win, from `longest` down to `shortest` tokens; of equals the most recent one
    that a full draft follows, else the most recent. Saxena, prompt lookup decoding, 2023.
    """

    def __init__(self, shape: TreeShape, longest: int = 4, shortest: int = 2) -> None:
        """Raises UsageError for a tree shape or bounds that hold no n-gram."""
        if not shape.is_chain:
            raise UsageError(
                f"the n-gram drafter cannot draft the shape {shape}",
                "it finds one continuation, which makes a chain",
                f"use chain:{shape.depth}",
            )
        if not 1 <= shortest <= longest:
            raise UsageError(
                f"n-grams of {shortest} to {longest} tokens cannot be looked up",
                "the shortest n-gram has at least 1 token and at most as many as the longest",
                "give 1 <= shortest <= longest",
            )
        super().__init__(shape)
        self.longest = longest
        self.shortest = shortest

    def allocate(self, pages: int, page_size: int, device: torch.device) -> None:
        """Nothing: the history is all that is read."""

    def propose(self, context: DraftContext, depth: int) -> DraftTree:
        """See `Drafter.propose`."""
        depth = min(depth, self.shape.depth)
        tokens = context.history.new_full((context.history.shape[0], depth), -1)
        if depth and len(context.drafting):
            lines = context.drafting
            found = self._continue(context.history[lines], context.lengths[lines, None], depth)
            tokens[lines] = found
        return chain(tokens)

    def _continue(self, history: Tensor, lengths: Tensor, depth: int) -> Tensor:
        """The tokens [S, depth] after the best occurrence, -1 where the history ends."""
        at = torch.arange(history.shape[1], device=history.device)
        matched = self._matched(history, lengths)
        matched = torch.where(at < lengths - 1, matched, 0)  # the suffix itself is no occurrence
        is_full = at + depth < lengths
        rank = (2 * matched + is_full) * len(at) + at
        rank = torch.where(matched >= self.shortest, rank, -1)
        best, end = rank.max(dim=1, keepdim=True)
        wanted = end + torch.arange(1, depth + 1, device=history.device)
        known = (best >= 0) & (wanted < lengths)
        return torch.where(known, history.gather(1, wanted.clamp_max(len(at) - 1)), -1)

    def _matched(self, history: Tensor, lengths: Tensor) -> Tensor:
        """How many tokens up to each position [S, L] equal the history's last, at most `longest`.

        What the answer says of positions from the last token on has no meaning.
        """
        width = history.shape[1]
        earlier = torch.nn.functional.pad(history, (self.longest - 1, 0), value=-1)
        running = torch.ones_like(history, dtype=torch.bool)
        matched = torch.zeros_like(history)
        for back in range(self.longest):
            suffix = history.gather(1, (lengths - 1 - back).clamp_min(0))
            start = self.longest - 1 - back
            running &= earlier[:, start : start + width] == suffix
            matched += running
        return matched
