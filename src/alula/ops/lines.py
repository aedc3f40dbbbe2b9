"""Where the running sequences stand, a line each, as the ops see them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LineState(NamedTuple):
    """What L lines know and a launch advances; on the device, contiguous, int64 but for the counts.

    What a line knows of its sequence is `history` up to `lengths`; the last token has no key yet.
    """

    history: Tensor
    """[L, H], token ids; no token belongs in the last column."""
    lengths: Tensor
    """[L]"""
    limits: Tensor
    """[L], the most tokens in all."""
    stop_ids: Tensor
    """[L, K], -1 where there are fewer."""
    page_table: Tensor
    """[L, P]"""
    draft_tokens: Tensor
    """[L, N], -1 for a node that is not used."""
    draft_parents: Tensor
    """[L, N], node numbers."""
    output_counts: Tensor | None
    """[L, V] int32, how often a token occurs in the output; None while nobody asks."""
