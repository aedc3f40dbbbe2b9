"""Training-time test written out: one sequence, one pair, one head, one key at a time, in fp64."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from alula.speculation.eagle3_config import Eagle3Config


class SlowTraining:
    """The loss of whole sequences under weights that gradients flow to."""

    def __init__(self, config: Eagle3Config, weights: Mapping[str, Tensor], table: Tensor) -> None:
        self.config = config
        self.w = weights
        self.table = table

    def logits(self, tokens: list[int], features: Tensor, steps: int) -> list[list[Tensor]]:
        """Logits [Vd] by step and pair; step j knows the pairs whose tokens exist."""
        pairs = len(tokens) - 1
        hidden = [self._fuse(features[t]) for t in range(pairs)]
        keys: list[list[Tensor]] = []
        values: list[list[Tensor]] = []
        found = []
        for j in range(steps):
            keys.append([])
            values.append([])
            inputs = []
            for t in range(pairs - j):
                normed = self._norm(hidden[t], "midlayer.hidden_norm")
                embedded = self._norm(self.table[tokens[t + 1 + j]], "midlayer.input_layernorm")
                inputs.append(torch.cat((embedded, normed)))
                keys[j].append(self._rotate(self._heads(inputs[t], "k"), t + j))
                values[j].append(self._heads(inputs[t], "v"))
            new = []
            for t in range(pairs - j):
                seen = [(keys[0][s], values[0][s]) for s in range(t + 1)]
                seen += [(keys[i][t], values[i][t]) for i in range(1, j + 1)]
                q = self._rotate(self._heads(inputs[t], "q"), t + j)
                new.append(self._layer(hidden[t], q, seen))
            hidden = new
            head = self.w["lm_head.weight"]
            found.append([head @ self._norm(y, "norm") for y in hidden])
        return found

    def loss(
        self,
        batch: list[tuple[list[int], Tensor, Tensor, list[bool]]],
        known: list[int],
        steps: int,
    ) -> Tensor:
        """Weighted loss of (tokens, features, the target's full logits, mask) sequences.

        `known` are the target ids of the draft vocabulary.
        """
        terms: list[list[Tensor]] = [[] for _ in range(steps)]
        for tokens, features, target, mask in batch:
            for j, row in enumerate(self.logits(tokens, features, steps)):
                for t, logits in enumerate(row):
                    predicted = t + 2 + j
                    if predicted >= len(tokens) or not mask[predicted]:
                        continue
                    teacher = target[predicted - 1]
                    if int(teacher.argmax()) not in known:
                        continue
                    p = teacher[known].softmax(0)
                    terms[j].append(-(p * logits.log_softmax(0)).sum())
        means = [0.8**j * sum(part) / len(part) for j, part in enumerate(terms)]
        return torch.stack(means).sum()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean() + self.config.rms_eps) * self.w[f"{name}.weight"]

    def _fuse(self, feature: Tensor) -> Tensor:
        return self.w["fc.weight"] @ feature

    def _heads(self, x: Tensor, name: str) -> Tensor:
        projected = self.w[f"midlayer.self_attn.{name}_proj.weight"] @ x
        return projected.view(-1, self.config.head_dim)

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        d = x.shape[1]
        angles = [position / self.config.rope_theta ** (2 * i / d) for i in range(d // 2)]
        cos = torch.tensor([math.cos(a) for a in angles], dtype=x.dtype)
        sin = torch.tensor([math.sin(a) for a in angles], dtype=x.dtype)
        low, high = x[:, : d // 2], x[:, d // 2 :]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=1)

    def _layer(self, residual: Tensor, q: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        group = self.config.heads // self.config.kv_heads
        mixed = []
        for head in range(self.config.heads):
            scores = torch.stack([q[head] @ k[head // group] for k, _ in seen])
            weights = (scores / math.sqrt(self.config.head_dim)).softmax(0)
            mixed.append(sum(p * v[head // group] for p, (_, v) in zip(weights, seen, strict=True)))
        y = residual + self.w["midlayer.self_attn.o_proj.weight"] @ torch.cat(mixed)
        x = self._norm(y, "midlayer.post_attention_layernorm")
        gate = self.w["midlayer.mlp.gate_proj.weight"] @ x
        up = self.w["midlayer.mlp.up_proj.weight"] @ x
        return y + self.w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
