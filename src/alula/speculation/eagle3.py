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
from alula.ops.attention import Heads, Plan
from alula.ops.kernels import Kernels, kernels_for
from alula.ops.linear import DenseWeight, Weight, linear, linear_fp32
from alula.ops.rope import Rotation, rotary_table
from alula.ops.rows import Rows
from alula.ops.store import places
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
        self._kernels = kernels_for(device)
        tensors = _Placed(checkpoint.tensors, device, self.dtype, self._kernels)
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
        """Where the keys of `rows` lie and which of them the window leaves in sight.

        To be called before these keys are stored.
        """
        heads = Heads(self.config.heads, self.config.kv_heads)
        plan = self._kernels.plan(rows, pool.page_size, heads, self.window)
        pool.clear_unwritten(plan)
        return plan

    def store(self, pairs: Pairs, slots: Tensor, pool: KVPool) -> None:
        """Write the pairs' keys and values at `slots` [R].

        With one layer they depend on the pair alone, so that nothing else need be computed for
        pairs that draft nothing.
        """
        config = self.config
        projected = linear(pairs.inputs, self._kv)
        self._kernels.rotate_and_store(
            projected.view(len(slots), 2 * config.kv_heads, config.head_dim),
            Heads(0, config.kv_heads),
            self._rotation(pairs.positions),
            pool.keys(0),
            pool.values(0),
            places(slots, pool.page_size),
        )

    def forward(self, pairs: Pairs, plan: Plan, pool: KVPool) -> Output:
        """Run the layer over pairs whose keys are stored; `plan` says what each of them sees."""
        config = self.config
        q = linear(pairs.inputs, self._q).view(-1, config.heads, config.head_dim)
        q = self._kernels.rotate(q, self._rotation(pairs.positions))
        mixed = plan.attend(q, pool.keys(0), pool.values(0), config.head_dim**-0.5)
        x, inner = self._add_norm(
            pairs.residual, linear(mixed.flatten(1), self._o), "midlayer.post_attention_layernorm"
        )
        inner = self._kernels.silu_and_mul(linear(inner, self._gate_up))
        x, normed = self._add_norm(x, linear(inner, self._down), "norm")
        hidden = normed if config.norm_output else x
        return Output(hidden, linear_fp32(normed, self._head))

    def _rotation(self, positions: Tensor) -> Rotation:
        return rotary_table(self._frequencies, positions, self._rope_scale)

    def _add_norm(self, x: Tensor, change: Tensor, name: str) -> tuple[Tensor, Tensor]:
        weight = self._norms[f"{name}.weight"]
        return self._kernels.add_rms_norm(x, change, weight, self.config.rms_eps)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._kernels.rms_norm(x, self._norms[f"{name}.weight"], self.config.rms_eps)


class _Placed:
    """A checkpoint's tensors, brought to the device and dtype they are used in."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        kernels: Kernels,
    ) -> None:
        self._kernels = kernels
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
        values = self.place(*(f"{name}.weight" for name in names))
        return self._kernels.lay_out(DenseWeight(values))

    def embedding(self) -> Callable[[Tensor], Tensor] | None:
        if "embed_tokens.weight" not in self._tensors:
            return None
        table = self.place("embed_tokens.weight")
        return lambda ids: table[ids]
