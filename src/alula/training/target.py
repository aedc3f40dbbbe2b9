"""The frozen target over padded batches: features and teacher, without a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.models.blocks import Layer
from alula.models.decoder import Decoder
from alula.models.rope import inverse_frequencies
from alula.ops.activation import silu_and_mul
from alula.ops.linear import linear
from alula.ops.norm import rms_norm
from alula.ops.rope import Rotation, rotary_table, rotate
from alula.training.network import Teacher

LOGIT_ROWS = 4096
"""Rows whose logits over the whole vocabulary exist at a time."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a layer's number, q [B, n, heads, d], k and v [B, n, kv, d] to what q mixes, as q."""


class Features(NamedTuple):
    """What the target makes of a batch [B, n] of ids."""

    aux: Tensor
    """[B, n, taps * h], the residual stream before the tapped layers."""
    last: Tensor
    """[B, n, h] after the final norm."""


class DenseTarget:
    """A decoder's own weights, run over whole sequences at once."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        frequencies, self._rope_scale = inverse_frequencies(
            decoder.shape.rope, decoder.shape.head_dim
        )
        self._frequencies = frequencies.to(decoder.device)

    @torch.no_grad()
    def features(self, ids: Tensor, taps: tuple[int, ...]) -> Features:
        """Causal over ids [B, n], padded on the right; `taps` as of `Decoder.forward`."""
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        return self.run(ids, positions, taps, lambda _, q, k, v: _causal(q, k, v))

    @torch.no_grad()
    def run(
        self, ids: Tensor, positions: Tensor, taps: tuple[int, ...], attend: Attend
    ) -> Features:
        """Ids [B, n] at rotary positions [B or 1, n] through all layers."""
        decoder, (batch, n) = self.decoder, ids.shape
        flat = rotary_table(self._frequencies, positions.flatten(), self._rope_scale)
        rotation = Rotation(*(part.view(-1, n, 1, part.shape[-1]) for part in flat))
        x = decoder.embed(ids.flatten()).view(batch, n, -1)
        tapped = {}
        for index, layer in enumerate(decoder.layers):
            if index in taps:
                tapped[index] = x
            x = _layer(layer, x, index, rotation, attend)
        tapped[len(decoder.layers)] = x
        aux = torch.cat([tapped[tap] for tap in taps], dim=-1) if taps else x[..., :0]
        return Features(aux, rms_norm(x, decoder.norm, decoder.shape.rms_eps))

    @torch.no_grad()
    def teacher(self, last: Tensor, mask: Tensor, draft_ids: Tensor) -> Teacher:
        """The target's word at every place whose next token bears loss.

        `last` [B, n, h]; `mask` [B, n] bool of the tokens that bear loss; `draft_ids` [Vd]
        ascending target ids.
        """
        sequences, places = mask[:, 1:].nonzero(as_tuple=True)
        hidden = last[sequences, places]
        known = torch.full((self.decoder.shape.vocab_size,), -1, device=last.device)
        known[draft_ids] = torch.arange(len(draft_ids), device=last.device)
        probabilities = torch.empty(len(hidden), len(draft_ids), device=last.device)
        choice = torch.empty(len(hidden), dtype=torch.int64, device=last.device)
        for start in range(0, len(hidden), LOGIT_ROWS):
            rows = slice(start, start + LOGIT_ROWS)
            logits = self.decoder.logits(hidden[rows])
            choice[rows] = known[logits.argmax(-1)]
            probabilities[rows] = logits[:, draft_ids].softmax(-1)
        return Teacher(sequences, places, probabilities, choice)


def _layer(layer: Layer, x: Tensor, index: int, rotation: Rotation, attend: Attend) -> Tensor:
    attention, feed_forward = layer.attention, layer.feed_forward
    batch, n, _ = x.shape
    normed = rms_norm(x, layer.attention_norm, layer.eps)
    heads, kv = attention.heads
    projected = linear(normed.flatten(0, 1), attention.qkv)
    projected = projected.view(batch, n, -1, attention.head_dim)
    q, k, v = torch.split(projected, [heads, kv, kv], dim=2)
    if attention.norms is not None:
        q = rms_norm(q, attention.norms.query, attention.norms.eps)
        k = rms_norm(k, attention.norms.key, attention.norms.eps)
    mixed = attend(index, rotate(q, rotation), rotate(k, rotation), v)
    x = x + linear(mixed.reshape(batch * n, -1), attention.out).view(batch, n, -1)
    inner = linear(
        rms_norm(x, layer.feed_forward_norm, layer.eps).flatten(0, 1), feed_forward.gate_up
    )
    return x + linear(silu_and_mul(inner), feed_forward.down).view(batch, n, -1)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2)
