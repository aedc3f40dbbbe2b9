"""The EAGLE-3 network: one decoder layer that continues the target's features.

Li et al., arXiv 2503.01840. A pair is what the layer reads at one place: the feature of position t
and the token at t + 1; it predicts the token at t + 2. The feature is the target's (through
`fuse`) where the target has computed t, else the network's own output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.models.rope import inverse_frequencies
from alula.ops.activation import silu_and_mul
from alula.ops.attention import Heads, Plan, attention, places, plan, write_kv
from alula.ops.linear import DenseWeight, Weight, can_pack, linear, pack
from alula.ops.norm import rms_norm
from alula.ops.rope import rotary_table, rotate
from alula.ops.rows import Rows
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint


class Pairs(NamedTuple):
    """R pairs, ready for the layer."""

    inputs: Tensor
    """[R, 2h], the normed embedding, then the normed hidden state."""
    residual: Tensor
    """[R, h]"""
    positions: Tensor
    """[R] int64, rotary positions: those of the features."""


class Output(NamedTuple):
    """What the layer makes of R pairs."""

    hidden: Tensor
    """[R, h], the feature to go on from."""
    logits: Tensor
    """[R, Vd] fp32."""


class Eagle3:
    """A drafter's weights and its forward pass over a key-value pool of one layer."""

    def __init__(
        self,
        checkpoint: Eagle3Checkpoint,
        *,
        embed: Callable[[Tensor], Tensor],
        device: torch.device,
        dtype: torch.dtype | None = None,
        window: int | None = None,
    ) -> None:
        """`embed` is the target's, ids [R] to [R, h]; a drafter with its own does not use it.

        `dtype`: None keeps the checkpoint's. `window` limits attention to as many positions, the
        drafter's own position limit always does.
        """
        self.config = checkpoint.config
        self.dtype = dtype or checkpoint.dtype
        self.device = device
        self.window = min(window or self.config.max_positions, self.config.max_positions)
        self.target_ids = checkpoint.target_ids.to(device)
        tensors = _Placed(checkpoint.tensors, device, self.dtype)
        self._norms = {name: tensors.place(name) for name in tensors.norms()}
        self._fc = tensors.weight("fc")
        self._q = tensors.weight("midlayer.self_attn.q_proj")
        self._kv = tensors.weight("midlayer.self_attn.k_proj", "midlayer.self_attn.v_proj")
        self._o = tensors.weight("midlayer.self_attn.o_proj")
        self._gate_up = tensors.weight("midlayer.mlp.gate_proj", "midlayer.mlp.up_proj")
        self._down = tensors.weight("midlayer.mlp.down_proj")
        self._head = tensors.weight("lm_head")
        self._embed = tensors.embedding() or embed
        frequencies, self._rope_scale = inverse_frequencies(self.config.rope, self.config.head_dim)
        self._frequencies = frequencies.to(device)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [R, taps * h_target] as hidden states [R, h]."""
        x = features.to(self.dtype)
        if self.config.norm_before_fc:
            x = self._norm(x, "input_norm")
        if self.config.fc_norm:
            parts = enumerate(x.chunk(self.config.features, dim=-1))
            x = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in parts], dim=-1)
        return linear(x, self._fc)

    def pair(self, hidden: Tensor, tokens: Tensor, positions: Tensor) -> Pairs:
        """Join hidden states [R, h] of `positions` [R] with the tokens [R] that follow them."""
        normed = self._norm(hidden, "midlayer.hidden_norm")
        embedded = self._norm(self._embed(tokens).to(self.dtype), "midlayer.input_layernorm")
        residual = normed if self.config.norm_before_residual else hidden
        return Pairs(torch.cat((embedded, normed), dim=-1), residual, positions)

    def plan(self, rows: Rows, pool: KVPool) -> Plan:
        """Where the keys of `rows` lie and which of them the window leaves in sight."""
        heads = Heads(self.config.heads, self.config.kv_heads)
        return plan(rows, pool.page_size, heads, self.window)

    def store(self, pairs: Pairs, slots: Tensor, pool: KVPool, spans: Plan) -> None:
        """Write the pairs' keys and values at `slots` [R]; `spans` are those of the next forward.

        With one layer they depend on the pair alone, so that nothing else need be computed for
        pairs that draft nothing.
        """
        k, v = linear(pairs.inputs, self._kv).chunk(2, dim=-1)
        heads = (len(slots), self.config.kv_heads, self.config.head_dim)
        k = rotate(k.reshape(heads), *self._rotation(pairs.positions))
        pool.clear_unwritten(spans)
        at = places(slots, pool.page_size)
        write_kv(pool.keys(0), pool.values(0), k, v.reshape(heads), at)

    def forward(self, pairs: Pairs, spans: Plan, pool: KVPool) -> Output:
        """Run the layer over pairs whose keys are stored; `spans` says what each of them sees."""
        config = self.config
        q = linear(pairs.inputs, self._q).view(-1, config.heads, config.head_dim)
        q = rotate(q, *self._rotation(pairs.positions))
        mixed = attention(q, pool.keys(0), pool.values(0), spans, config.head_dim**-0.5)
        x = pairs.residual + linear(mixed.flatten(1), self._o)
        inner = linear(self._norm(x, "midlayer.post_attention_layernorm"), self._gate_up)
        x = x + linear(silu_and_mul(inner), self._down)
        normed = self._norm(x, "norm")
        return Output(normed if config.norm_output else x, linear(normed, self._head).float())

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary_table(self._frequencies, positions, self._rope_scale)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self._norms[f"{name}.weight"], self.config.rms_eps)


class _Placed:
    """A checkpoint's tensors, brought to the device and dtype they are used in."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype):
        self._tensors = tensors
        self._device = device
        self._dtype = dtype

    def norms(self) -> list[str]:
        return [n for n, t in self._tensors.items() if t.dim() == 1 and t.is_floating_point()]

    def place(self, *names: str) -> Tensor:
        """One tensor, or several stacked along the first dimension."""
        parts = [self._tensors[name].to(self._device, self._dtype) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def weight(self, *names: str) -> Weight:
        weight = DenseWeight(self.place(*(f"{name}.weight" for name in names)))
        return pack(weight) if can_pack(weight) else weight

    def embedding(self) -> Callable[[Tensor], Tensor] | None:
        if "embed_tokens.weight" not in self._tensors:
            return None
        table = self.place("embed_tokens.weight")
        return lambda ids: table[ids]
