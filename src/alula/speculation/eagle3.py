"""The EAGLE-3 network: one decoder layer that continues the target's features.

Li et al., arXiv 2503.01840. A pair is what the layer reads at one place: the feature of position t
and the token at t + 1; it predicts the token at t + 2. The feature is the target's (through
`fuse`) where the target has computed t, else the network's own output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.models.rope import inverse_frequencies
from alula.ops.attention import Heads, Plan
from alula.ops.kernels import Kernels, kernels_for
from alula.ops.layer import Store
from alula.ops.linear import DenseWeight, Weight, linear
from alula.ops.norm import Norm, Normed
from alula.ops.pair import Pairs, PairWeights
from alula.ops.rows import Rows
from alula.ops.store import Places
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint


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
        embedding: Tensor,
        device: torch.device,
        dtype: torch.dtype | None = None,
        window: int | None = None,
    ) -> None:
        """`embedding` [V, h] is the target's; a drafter with its own does not use it.

        `dtype`: None keeps the checkpoint's. `window` limits attention to as many positions, the
        drafter's own position limit always does.
        """
        self.config = checkpoint.config
        self.dtype = dtype or checkpoint.dtype
        self.device = device
        self.window = min(window or self.config.max_positions, self.config.max_positions)
        self.target_ids = checkpoint.target_ids.to(device)
        self.kernels = kernels_for(device)
        tensors = _Placed(checkpoint.tensors, device, self.dtype, self.kernels)
        self._norms = {name: tensors.place(name).float() for name in tensors.norms()}
        self._inner_norm, self._final_norm = (
            Norm(self._norms[f"{name}.weight"], self.config.rms_eps)
            for name in ("midlayer.post_attention_layernorm", "norm")
        )
        self._fc = tensors.weight("fc")
        self._qkv, self._kv = tensors.attention(self.config.heads * self.config.head_dim)
        self._o = tensors.weight("midlayer.self_attn.o_proj")
        self._gate_up = tensors.weight("midlayer.mlp.gate_proj", "midlayer.mlp.up_proj")
        self._down = tensors.weight("midlayer.mlp.down_proj")
        self._head = tensors.weight("lm_head")
        frequencies, scale = inverse_frequencies(self.config.rope, self.config.head_dim)
        own = tensors.embedding()
        self._pair_weights = PairWeights(
            table=embedding if own is None else own,
            embedding_norm=self._norms["midlayer.input_layernorm.weight"],
            hidden_norm=self._norms["midlayer.hidden_norm.weight"],
            eps=self.config.rms_eps,
            frequencies=frequencies.to(device),
            scale=scale,
            norms_residual=self.config.norm_before_residual,
        )

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [R, taps * h_target] as hidden states [R, h]."""
        x = features.to(self.dtype)
        if self.config.norm_before_fc:
            x = self._norm(x, "input_norm")
        if self.config.fc_norm:
            parts = enumerate(x.chunk(self.config.features, dim=-1))
            x = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in parts], dim=-1)
        return linear(x, self._fc)

    def pair(
        self, hidden: Tensor, tokens: Tensor, positions: Tensor, sources: Tensor | None = None
    ) -> Pairs:
        """Join hidden states of `positions` [R] with the tokens [R] that follow them.

        `hidden` [R, h], or [·, h] of which `sources` [R] are taken. `positions` are rotary.
        """
        return self.kernels.pair(hidden, sources, tokens, positions, self._pair_weights)

    def plan(self, rows: Rows, pool: KVPool) -> Plan:
        """Where the keys of `rows` lie and which of them the window leaves in sight.

        To be called before these keys are stored.
        """
        heads = Heads(self.config.heads, self.config.kv_heads)
        plan = self.kernels.plan(rows, pool.page_size, heads, self.window)
        pool.clear_unwritten(plan)
        return plan

    def store(self, pairs: Pairs, at: Places, pool: KVPool) -> None:
        """Write the pairs' keys and values.

        With one layer they depend on the pair alone, so that nothing else need be computed for
        pairs that draft nothing.
        """
        self._project(pairs, self._kv, Heads(0, self.config.kv_heads), at, pool)

    def forward(
        self, pairs: Pairs, at: Places, plan: Plan, pool: KVPool, count: int | None = None
    ) -> Output:
        """Store R pairs and run the layer over the first `count`, all if None.

        `plan` says what each of these sees.
        """
        config, kernels = self.config, self.kernels
        heads = Heads(config.heads, config.kv_heads)
        q = self._project(pairs, self._qkv, heads, at, pool)[:count]
        mixed = plan.attend(q, pool.keys(0), pool.values(0), config.head_dim**-0.5)
        stream = pairs.stream(count)
        stream = kernels.add(stream, mixed.flatten(1), self._o, self._inner_norm)
        inner = kernels.gate(stream.normed, self._gate_up)
        stream = kernels.add(stream, inner, self._down, self._final_norm)
        hidden = self._norm(stream.x, "norm") if config.norm_output else stream.x
        return Output(hidden, kernels.project(stream.normed, self._head, torch.float32))

    def _project(
        self, pairs: Pairs, weight: Weight, heads: Heads, at: Places, pool: KVPool
    ) -> Tensor:
        """Store keys and values; queries [R, heads, d], rotated."""
        store = Store(pool.keys(0), pool.values(0), at)
        return self.kernels.project_heads(
            Normed(pairs.inputs), weight, heads, pairs.rotation, store
        )

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.kernels.rms_norm(x, self._norms[f"{name}.weight"], self.config.rms_eps)


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

    def attention(self, queries: int) -> tuple[Weight, Weight]:
        """The projections of queries, keys and values, and of the last two; of one memory where
        a form lays weights out as they are.
        """
        qkv = self.place(*(f"midlayer.self_attn.{name}_proj.weight" for name in "qkv"))
        lay_out = self._kernels.lay_out
        return lay_out(DenseWeight(qkv)), lay_out(DenseWeight(qkv[queries:]))

    def embedding(self) -> Tensor | None:
        name = "embed_tokens.weight"
        return self.place(name) if name in self._tensors else None
