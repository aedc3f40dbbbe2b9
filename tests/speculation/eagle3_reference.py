"""EAGLE-3 without cache, batch or fused weights: one pair, one head, one key at a time, in fp64."""

import math

import torch
from torch import Tensor

from alula.sampling.noise import gumbel
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint
from alula.speculation.tree import TreeShape


class SlowEagle3:
    """The drafter of one sequence: known `tokens`, `features` [n, w] of all but the last."""

    def __init__(
        self,
        checkpoint: Eagle3Checkpoint,
        table: Tensor,
        tokens: list[int],
        features: Tensor,
        window: int,
    ) -> None:
        self.config = checkpoint.config
        self.w = {
            name: t.double() if t.is_floating_point() else t
            for name, t in checkpoint.tensors.items()
        }
        self.table = self.w.get("embed_tokens.weight", table.double())
        self.target_ids = checkpoint.target_ids
        self.window = window
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        assert len(features) == len(tokens) - 1
        for t, feature in enumerate(features.double()):
            self.last = self._pair(self._fuse(feature), tokens[t + 1], t)
            self._remember(self.last)
        self.position = len(tokens) - 2

    def draft(self, path: list[int]) -> tuple[Tensor, Tensor]:
        """Logits [Vd] and hidden state [h] after the known tokens and a path of drafted ones."""
        kept = len(self.keys)
        pair = self.last
        logits, hidden = self._layer(pair)
        for step, token in enumerate(path, start=1):
            pair = self._pair(hidden, token, self.position + step)
            self._remember(pair)
            logits, hidden = self._layer(pair)
        del self.keys[kept:], self.values[kept:]
        return logits, hidden

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = 1 / math.sqrt(float((x * x).sum()) / len(x) + self.config.rms_eps)
        return x * scale * self.w[f"{name}.weight"]

    def _fuse(self, feature: Tensor) -> Tensor:
        if self.config.norm_before_fc:
            feature = self._norm(feature, "input_norm")
        if self.config.fc_norm:
            wide = self.config.target_hidden_size
            parts = [feature[i * wide : (i + 1) * wide] for i in range(self.config.features)]
            feature = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        return self.w["fc.weight"] @ feature

    def _pair(self, hidden: Tensor, token: int, position: int):
        embedded = self._norm(self.table[token], "midlayer.input_layernorm")
        normed = self._norm(hidden, "midlayer.hidden_norm")
        residual = normed if self.config.norm_before_residual else hidden
        return torch.cat((embedded, normed)), residual, position

    def _heads(self, x: Tensor, name: str, count: int) -> Tensor:
        return (self.w[f"midlayer.self_attn.{name}_proj.weight"] @ x).view(count, -1)

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        d = x.shape[1]
        out = x.clone()
        for i in range(d // 2):
            angle = position / self.config.rope_theta ** (2 * i / d)
            c, s = math.cos(angle), math.sin(angle)
            out[:, i] = x[:, i] * c - x[:, i + d // 2] * s
            out[:, i + d // 2] = x[:, i + d // 2] * c + x[:, i] * s
        return out

    def _remember(self, pair) -> None:
        inputs, _, position = pair
        self.keys.append(self._rotate(self._heads(inputs, "k", self.config.kv_heads), position))
        self.values.append(self._heads(inputs, "v", self.config.kv_heads))

    def _layer(self, pair) -> tuple[Tensor, Tensor]:
        inputs, residual, position = pair
        q = self._rotate(self._heads(inputs, "q", self.config.heads), position)
        keys, values = self.keys[-self.window :], self.values[-self.window :]
        group = self.config.heads // self.config.kv_heads
        mixed = []
        for head in range(self.config.heads):
            scores = torch.stack([q[head] @ key[head // group] for key in keys])
            weights = (scores / math.sqrt(q.shape[1])).softmax(0)
            mixed.append(sum(p * v[head // group] for p, v in zip(weights, values, strict=True)))
        y = residual + self.w["midlayer.self_attn.o_proj.weight"] @ torch.cat(mixed)
        x = self._norm(y, "midlayer.post_attention_layernorm")
        gate = self.w["midlayer.mlp.gate_proj.weight"] @ x
        up = self.w["midlayer.mlp.up_proj.weight"] @ x
        y = y + self.w["midlayer.mlp.down_proj.weight"] @ (gate / (1 + (-gate).exp()) * up)
        normed = self._norm(y, "norm")
        return self.w["lm_head.weight"] @ normed, normed if self.config.norm_output else y


def slow_tree(
    slow: SlowEagle3, shape: TreeShape, key: int, temperature: float, length: int
) -> list[tuple[int, ...]]:
    """Paths of the nodes that EAGLE-2's expansion keeps, in the order of their numbers."""
    pool: list[tuple[float, tuple[int, ...]]] = []
    frontier: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for level in range(1, shape.depth + 1):
        children = []
        for score, path in frontier:
            q = slow.draft(list(path))[0].log_softmax(0)
            if temperature > 0:
                where = torch.tensor([length + level - 1])
                noise = gumbel(torch.tensor([key]), where, slow.target_ids)[0].double()
                q = q / temperature + noise
            best = sorted(range(len(q)), key=lambda i: -float(q[i]))[: shape.width]
            gains = q[best].log_softmax(0) if temperature > 0 else q[best]
            for gain, i in zip(gains.tolist(), best, strict=True):
                children.append((score + gain, (*path, int(slow.target_ids[i]))))
        pool += children
        frontier = sorted(children, key=lambda child: -child[0])[: shape.width]
    chosen = sorted(range(len(pool)), key=lambda i: -pool[i][0])[: shape.nodes]
    return [pool[i][1] for i in sorted(chosen)]
