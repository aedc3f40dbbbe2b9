"""A drafter's pair: a hidden state joined with the embedding of the token that follows it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from alula.ops.layer import Stream
from alula.ops.norm import Normed, rms_norm
from alula.ops.rope import Rotation, rotary_table


class PairWeights(NamedTuple):
    """What all pairs of a drafter are made with."""

    table: Tensor
    """[V, h], the embeddings."""
    embedding_norm: Tensor
    """[h] fp32."""
    hidden_norm: Tensor
    """[h] fp32."""
    eps: float
    frequencies: Tensor
    """[d / 2] fp32, of the rotary embedding."""
    scale: float
    """On cosine and sine."""
    norms_residual: bool
    """The residual stream begins with the normed hidden state, not with the state itself."""


class Pairs(NamedTuple):
    """R pairs, ready for the layer."""

    inputs: Tensor
    """[R, 2h], the normed embedding, then the normed hidden state."""
    residual: Tensor
    """[R, h]"""
    rotation: Rotation
    room: Tensor | None = None
    """[2, R] int64 zeros, as `Stream` wants them for what a layer adds."""

    def stream(self, count: int | None) -> Stream:
        """The residual stream that begins with the first `count` pairs."""
        room = None if self.room is None else self.room[:, :count]
        return Stream(self.residual[:count], Normed(self.inputs[:count]), room)


def pair(
    hidden: Tensor, sources: Tensor | None, tokens: Tensor, positions: Tensor, weights: PairWeights
) -> Pairs:
    """Join rows `sources` [R] of `hidden` [·, h], all of them if None, with `tokens` [R].

    `positions` [R] are rotary positions. Everything is in the dtype of `hidden`.
    """
    state = hidden if sources is None else hidden[sources]
    normed = rms_norm(state, weights.hidden_norm, weights.eps)
    embedded = weights.table[tokens].to(hidden.dtype)
    embedded = rms_norm(embedded, weights.embedding_norm, weights.eps)
    return Pairs(
        torch.cat((embedded, normed), dim=-1),
        normed if weights.norms_residual else state,
        rotary_table(weights.frequencies, positions, weights.scale),
    )
