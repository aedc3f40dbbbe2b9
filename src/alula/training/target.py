"""The frozen target over padded batches: features and teacher, without a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from alula.models.blocks import Layer
from alula.models.decoder import Decoder
from alula.models.rope import inverse_frequencies
from alula.ops.kernels import Kernels
from alula.ops.linear import Weight
from alula.ops.rope import Rotation, rotary_table
from alula.ops.store import Places
from alula.training.network import Teacher

LOGIT_ROWS = 4096
"""Rows whose logits over the whole vocabulary exist at a time."""

_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Not cuDNN's, which plans anew, at a millisecond, for every shape it has not seen."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From q [B, n, heads, d], and a layer's keys and values as of `Kept`, to what q mixes, as q."""


class Kept(NamedTuple):
    """Where keys and values go."""

    keys: Tensor
    """[layers, lines, kv, L, d]"""
    values: Tensor
    """[layers, lines, kv, L, d]"""
    at: Places
    """Lines, as pages, and positions in them, of the rows of a launch."""


class Features(NamedTuple):
    """What the target makes of a batch [B, n] of ids."""

    aux: Tensor
    """[B, n, taps * h], the residual stream before the tapped layers."""
    last: Tensor
    """[B, n, h] after the final norm."""


class _Stream(NamedTuple):
    """The residual stream [R, h], and what is still to be added to it."""

    x: Tensor
    change: Tensor | None = None

    def total(self) -> Tensor:
        return self.x if self.change is None else self.x + self.change

    def normed(self, kernels: Kernels, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The total, and its norm."""
        if self.change is None:
            return self.x, kernels.rms_norm(self.x, weight, eps)
        return kernels.add_rms_norm(self.x, self.change, weight, eps)


class DenseTarget:
    """A decoder's own weights, run over whole sequences at once.

    It may round otherwise than the decoder: its sums run in whatever order is fastest.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        frequencies, self._rope_scale = inverse_frequencies(
            decoder.shape.rope, decoder.shape.head_dim
        )
        self._frequencies = frequencies.to(decoder.device)

    @torch.no_grad()
    def features(self, ids: Tensor, taps: tuple[int, ...]) -> Features:
        """Causal over ids [B, n], padded on the right; `taps` as of `Decoder.forward`."""
        shape, (batch, n) = self.decoder.shape, ids.shape
        size = (2, batch, shape.kv_heads, n, shape.head_dim)
        scratch = torch.empty(size, dtype=self.decoder.cache_dtype, device=ids.device)
        keys, values = scratch[:, None].expand(-1, shape.layers, -1, -1, -1, -1)
        lines = torch.arange(batch, device=ids.device)
        positions = torch.arange(n, device=ids.device)
        kept = Kept(keys, values, grid(lines, positions))
        return self.run(ids, positions[None], taps, kept, causal)

    @torch.no_grad()
    def run(
        self, ids: Tensor, positions: Tensor, taps: tuple[int, ...], kept: Kept, attend: Attend
    ) -> Features:
        """Ids [B, n] at rotary positions [B or 1, n] through all layers."""
        decoder, (batch, n) = self.decoder, ids.shape
        every = positions.expand(batch, n).flatten()
        rotation = rotary_table(self._frequencies, every, self._rope_scale)
        stream, tapped = _Stream(decoder.embed(ids.flatten())), {}

        def mix(index: int, q: Tensor) -> Tensor:
            q = q.view(batch, n, -1, q.shape[-1]).to(kept.keys.dtype)
            return attend(q, kept.keys[index], kept.values[index]).reshape(batch * n, -1)

        with sdpa_kernel(_BACKENDS):
            for index, layer in enumerate(decoder.layers):
                if index in taps:
                    stream = _Stream(stream.total())
                    tapped[index] = stream.x
                stream = self._layer(layer, index, stream, rotation, kept, mix)
        x, normed = stream.normed(decoder.kernels, decoder.norm, decoder.shape.rms_eps)
        tapped[len(decoder.layers)] = x
        aux = torch.cat([tapped[tap] for tap in taps], dim=-1) if taps else x[..., :0]
        return Features(aux.view(batch, n, -1), normed.view(batch, n, -1))

    def _layer(
        self,
        layer: Layer,
        index: int,
        stream: _Stream,
        rotation: Rotation,
        kept: Kept,
        mix: Callable[[int, Tensor], Tensor],
    ) -> _Stream:
        kernels, attention, feed_forward = self.decoder.kernels, layer.attention, layer.feed_forward
        x, normed = stream.normed(kernels, layer.attention_norm, layer.eps)
        projected = _linear(normed, attention.qkv).view(len(x), -1, attention.head_dim)
        keys, values = kept.keys[index], kept.values[index]
        q = kernels.rotate_and_store(
            projected, attention.heads, rotation, keys, values, kept.at, attention.norms
        )
        stream = _Stream(x, _linear(mix(index, q), attention.out))
        x, normed = stream.normed(kernels, layer.feed_forward_norm, layer.eps)
        inner = kernels.silu_and_mul(_linear(normed, feed_forward.gate_up))
        return _Stream(x, _linear(inner, feed_forward.down))

    def logits(self, hidden: Tensor) -> Tensor:
        """Of hidden [R, h], [R, V] in fp32."""
        head = self.decoder.head
        return head.multiply_in_any_order(hidden.to(head.dtype), torch.float32)

    @torch.no_grad()
    def teacher(self, last: Tensor, mask: Tensor, draft_ids: Tensor) -> Teacher:
        """The target's word at every place whose next token bears loss.

        `last` [B, n, h]; `mask` [B, n] bool of the tokens that bear loss, on the CPU, so that
        nothing waits for the device; `draft_ids` [Vd] ascending target ids.
        """
        on_host = mask[:, 1:].nonzero(as_tuple=True)
        earliest = int(on_host[1].min()) if len(on_host[1]) else 0
        sequences, places = (sent(part, last.device) for part in on_host)
        hidden = last[sequences, places]
        known = torch.full((self.decoder.shape.vocab_size,), -1, device=last.device)
        known[draft_ids] = torch.arange(len(draft_ids), device=last.device)
        dtype = torch.float16 if last.is_cuda else torch.float32
        size = (len(hidden), len(draft_ids))
        probabilities = torch.empty(size, dtype=dtype, device=last.device)
        choice = torch.empty(len(hidden), dtype=torch.int64, device=last.device)
        for start in range(0, len(hidden), LOGIT_ROWS):
            rows = slice(start, start + LOGIT_ROWS)
            found = self.decoder.kernels.restrict(self.logits(hidden[rows]), draft_ids, dtype)
            choice[rows], probabilities[rows] = known[found.best], found.probabilities
        return Teacher(sequences, places, probabilities, choice, earliest)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """x of the CPU on a device, which need not have caught up with the host."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def grid(lines: Tensor, positions: Tensor) -> Places:
    """The places of all `positions` [n] of each of `lines` [B]."""
    return Places(lines.repeat_interleave(len(positions)), positions.repeat(len(lines)))


def causal(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What q [B, n, heads, d] mixes of keys and values [B, kv, n, d] up to its own, as q."""
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True
    )
    return mixed.transpose(1, 2)


def _linear(x: Tensor, weight: Weight) -> Tensor:
    return weight.multiply_in_any_order(x.to(weight.dtype), weight.dtype)
