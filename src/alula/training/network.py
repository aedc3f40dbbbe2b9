"""EAGLE-3 as it learns: the network of `speculation.eagle3`, differentiable, over padded batches.

Training-time test (Li et al., arXiv 2503.01840): the network is unrolled over J steps in which it
reads its own hidden states, as it will when it drafts, and the tokens that truly follow. A pair is
(feature of t, token at t + 1); step j continues it with the token at t + 1 + j and predicts the
one at t + 2 + j. Sequences are padded on the right, which causal attention never sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from alula.models.rope import inverse_frequencies
from alula.ops.attention import Heads
from alula.ops.rope import Rotation, rotary_table
from alula.speculation.eagle3_config import Eagle3Config
from alula.training.attention import Memory
from alula.training.differentiable import cross_entropy, rotated_heads, silu_and_mul

STEP_WEIGHT = 0.8
"""Each step's loss weighs this much of the one before."""


class Teacher(NamedTuple):
    """What the target says at the M places whose next token bears loss."""

    sequences: Tensor
    """[M] int64, line of the batch."""
    places: Tensor
    """[M] int64, position whose next token is predicted."""
    probabilities: Tensor
    """[M, Vd], the target's, renormalised on the draft vocabulary; fp16 on a GPU, else fp32."""
    choice: Tensor
    """[M] int64, draft id of the target's own choice, -1 where the draft vocabulary lacks it."""
    earliest: int
    """The smallest place, known without asking the device."""

    def reachable(self, step: int) -> Tensor:
        """[P] int64, the entries that step `step` can predict: it starts 1 + step places before.

        All of them in most batches, as a prompt comes before an answer.
        """
        if self.earliest > step:
            return torch.arange(len(self.places), device=self.places.device)
        return (self.places > step).nonzero(as_tuple=True)[0]


class StepLoss(NamedTuple):
    """One unrolled step over a batch."""

    loss: Tensor
    """[], mean soft cross-entropy where the target's choice can be drafted."""
    places: Tensor
    """[P] int64, the entries of the teacher this step could predict."""
    hits: Tensor
    """[P] bool, where the likeliest draft is the target's choice."""


class DraftNetwork(nn.Module):
    """A drafter's weights under their public names, in fp32."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        h, wide = config.hidden_size, config.features * config.target_hidden_size
        self.fc = _linear(wide, h)
        self.midlayer = _MidLayer(config)
        self.norm = _Norm(h, config)
        self.lm_head = _linear(h, config.draft_vocab_size)
        if config.norm_before_fc:
            self.input_norm = _Norm(wide, config)
        if config.fc_norm:
            norms = [_Norm(config.target_hidden_size, config) for _ in range(config.features)]
            self.fc_norm = nn.ModuleList(norms)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [..., taps * h_target] as hidden states [..., h]."""
        x = features
        if self.config.norm_before_fc:
            x = self.input_norm(x)
        if self.config.fc_norm:
            parts = x.chunk(self.config.features, dim=-1)
            pairs = zip(self.fc_norm, parts, strict=True)
            x = torch.cat([norm(part) for norm, part in pairs], dim=-1)
        return _wide(self.fc(x), self.norm.weight)

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Callable[[Tensor], Tensor], steps: int
    ) -> Iterator[Tensor]:
        """Hidden states [B, n, h] of pairs t = 0 … n - 1 after each of `steps` steps.

        `features` [B, n, taps * h_target] of positions 0 … n - 1; `tokens` [B, n + 1] ids. Where
        t + 1 + j is behind the last token the result means nothing.
        """
        (batch, n), layer = features.shape[:2], self.midlayer
        hidden, memory, joined = self.fuse(features), Memory(), layer.joined()
        embedded = _narrow(layer.input_layernorm(embed(F.pad(tokens, (0, steps - 1)))))
        table = layer.self_attn.table(n + steps, features.device)
        for step in range(steps):
            rotation = Rotation(*(part[step : step + n].repeat(batch, 1, 1) for part in table))
            following = embedded[:, 1 + step : 1 + step + n]
            hidden = layer(hidden, following, joined, rotation, memory)
            yield hidden
            if self.config.norm_output:
                hidden = self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Over the draft vocabulary: [..., h] to [..., Vd]."""
        return _wide(self._scores(hidden), self.norm.weight)

    def losses(
        self,
        features: Tensor,
        tokens: Tensor,
        embed: Callable[[Tensor], Tensor],
        teacher: Teacher,
        steps: int,
    ) -> list[StepLoss]:
        """Every step against the teacher; arguments as of `unroll`.

        Step j predicts the token after place r from the pair t = r - 1 - j, so that the loss mask
        is that of the predicted token.
        """
        found = []
        lines = features.shape[1] * teacher.sequences
        for step, hidden in enumerate(self.unroll(features, tokens, embed, steps)):
            reachable = teacher.reachable(step)
            pairs = (lines + teacher.places - 1 - step)[reachable]
            scores = self._scores(hidden.flatten(0, 1).index_select(0, pairs))
            losses, best = cross_entropy(scores, teacher.probabilities, reachable)
            choice = teacher.choice[reachable]
            known = (choice >= 0).to(losses.dtype)
            loss = (losses * known).sum() / known.sum().clamp_min(1)
            found.append(StepLoss(loss, reachable, best == choice))
        return found

    def _scores(self, hidden: Tensor) -> Tensor:
        """Logits in the dtype that their product is made in."""
        scores: Tensor = self.lm_head(self.norm(hidden))
        return scores


def weighted(losses: list[StepLoss]) -> Tensor:
    """The loss that is minimised: steps weigh 1, 0.8, 0.64, …"""
    return torch.stack([STEP_WEIGHT**step * part.loss for step, part in enumerate(losses)]).sum()


class _Joined(NamedTuple):
    """Projections of one input side by side, in the dtype of products: once for all steps."""

    qkv: Tensor
    gate_up: Tensor


class _Norm(nn.Module):
    def __init__(self, size: int, config: Eagle3Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = config.rms_eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(_wide(x, self.weight), x.shape[-1:], self.weight, self._eps)


class _Attention(nn.Module):
    _frequencies: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self._heads, self._head_dim = Heads(config.heads, config.kv_heads), config.head_dim
        keys = config.kv_heads * config.head_dim
        self.q_proj = _linear(2 * config.hidden_size, config.heads * config.head_dim)
        self.k_proj = _linear(2 * config.hidden_size, keys)
        self.v_proj = _linear(2 * config.hidden_size, keys)
        self.o_proj = _linear(config.heads * config.head_dim, config.hidden_size)
        frequencies, self._scale = inverse_frequencies(config.rope, config.head_dim)
        self.register_buffer("_frequencies", frequencies, persistent=False)

    def table(self, count: int, device: torch.device) -> Rotation:
        """The rotation of positions 0 … count - 1."""
        positions = torch.arange(count, device=device)
        return rotary_table(self._frequencies, positions, self._scale)

    def forward(self, x: Tensor, qkv: Tensor, rotation: Rotation, memory: Memory) -> Tensor:
        projected = F.linear(x, qkv).view(rotation.cos.shape[0], -1, self._head_dim)
        q, k, v = rotated_heads(projected, rotation, self._heads)
        mixed = memory.attend(*(part.view(*x.shape[:2], -1, self._head_dim) for part in (q, k, v)))
        added: Tensor = self.o_proj(mixed.flatten(2))
        return added


class _FeedForward(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor, gate_up: Tensor) -> Tensor:
        inner = silu_and_mul(F.linear(x, gate_up).flatten(0, 1))
        added: Tensor = self.down_proj(inner.view(*x.shape[:2], -1))
        return added


class _MidLayer(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        h = config.hidden_size
        self._normed_residual = config.norm_before_residual
        self.input_layernorm = _Norm(h, config)
        self.hidden_norm = _Norm(h, config)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(h, config)
        self.mlp = _FeedForward(config)

    def joined(self) -> _Joined:
        """For all steps of an unrolling."""
        attention, mlp = self.self_attn, self.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up = (mlp.gate_proj, mlp.up_proj)
        joined = (torch.cat([part.weight for part in parts]) for parts in (qkv, gate_up))
        return _Joined(*map(_narrow, joined))

    def forward(
        self, hidden: Tensor, embedded: Tensor, joined: _Joined, rotation: Rotation, memory: Memory
    ) -> Tensor:
        """`embedded` is normed."""
        normed = self.hidden_norm(hidden)
        pair = torch.cat((embedded, _narrow(normed)), dim=-1)
        residual = normed if self._normed_residual else hidden
        x = residual + self.self_attn(pair, joined.qkv, rotation, memory)
        y: Tensor = x + self.mlp(_narrow(self.post_attention_layernorm(x)), joined.gate_up)
        return y


def _linear(inner: int, outer: int) -> nn.Linear:
    return nn.Linear(inner, outer, bias=False)


def _wide(x: Tensor, weight: Tensor) -> Tensor:
    """In the masters' dtype: norms, the residual stream and the loss are not rounded."""
    return x.to(weight.dtype)


def _narrow(x: Tensor) -> Tensor:
    """In the dtype of products: that of autocast, where it is on."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
