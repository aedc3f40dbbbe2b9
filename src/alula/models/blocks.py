"""The blocks a decoder layer is made of, and how they are read from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.models.placement import Reader
from alula.ops.activation import silu_and_mul
from alula.ops.attention import Places, Plan, attention, write_kv
from alula.ops.linear import Weight, linear
from alula.ops.norm import rms_norm
from alula.ops.rope import rotate
from alula.shapes.decoder import DecoderShape

Shapes = dict[str, tuple[int, ...]]


class Launch(NamedTuple):
    """What the layers of one launch of R rows share."""

    cos: Tensor
    """[R, 1, d]"""
    sin: Tensor
    """[R, 1, d]"""
    at: Places
    plan: Plan
    pool: KVPool


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over the paged pool, with norms on query and key where given."""

    qkv: Weight
    out: Weight
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    def __call__(self, x: Tensor, index: int, launch: Launch) -> Tensor:
        """From normed x [R, h] to what layer `index` adds to the residual stream [R, h]."""
        projected = linear(x, self.qkv).view(x.shape[0], -1, self.head_dim)
        v = projected[:, self.heads + self.kv_heads :]
        qk = self._normed(projected[:, : self.heads + self.kv_heads])
        qk = rotate(qk, launch.cos, launch.sin)
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        keys, values = launch.pool.keys(index), launch.pool.values(index)
        write_kv(keys, values, k, v, launch.at)
        mixed = attention(q, keys, values, launch.plan, self.head_dim**-0.5)
        return linear(mixed.flatten(1), self.out)

    def _normed(self, qk: Tensor) -> Tensor:
        """Query and key heads [R, heads + kv_heads, d] after their norms, in families with any."""
        if self.q_norm is None or self.k_norm is None:
            return qk
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        return torch.cat(
            (rms_norm(q, self.q_norm, self.eps), rms_norm(k, self.k_norm, self.eps)), 1
        )


@dataclass(frozen=True)
class FeedForward:
    """SwiGLU with gate and up in one projection."""

    gate_up: Weight
    down: Weight

    def __call__(self, x: Tensor) -> Tensor:
        """From normed x [R, h] to what it adds to the residual stream [R, h]."""
        return linear(silu_and_mul(linear(x, self.gate_up)), self.down)


@dataclass(frozen=True)
class Layer:
    """A pre-norm decoder layer."""

    attention_norm: Tensor
    attention: Attention
    feed_forward_norm: Tensor
    feed_forward: FeedForward
    eps: float

    def __call__(self, x: Tensor, index: int, launch: Launch) -> Tensor:
        """The residual stream [R, h] after layer `index`; x itself is left as it was."""
        x = x + self.attention(rms_norm(x, self.attention_norm, self.eps), index, launch)
        return x + self.feed_forward(rms_norm(x, self.feed_forward_norm, self.eps))

    def weights(self) -> tuple[Weight, ...]:
        """Its linear weights."""
        attention, feed_forward = self.attention, self.feed_forward
        return attention.qkv, attention.out, feed_forward.gate_up, feed_forward.down


def projection_rows(shape: DecoderShape) -> dict[str, int]:
    """Output sizes of the query, key and value projections."""
    keys = shape.kv_heads * shape.head_dim
    return {"q_proj": shape.heads * shape.head_dim, "k_proj": keys, "v_proj": keys}


def layer_tensors(shape: DecoderShape) -> Shapes:
    """Names within a layer, and shapes, of the tensors every family has."""
    h, f = shape.hidden_size, shape.intermediate_size
    return {
        "input_layernorm.weight": (h,),
        **{f"self_attn.{name}.weight": (n, h) for name, n in projection_rows(shape).items()},
        "self_attn.o_proj.weight": (h, shape.heads * shape.head_dim),
        "post_attention_layernorm.weight": (h,),
        "mlp.gate_proj.weight": (f, h),
        "mlp.up_proj.weight": (f, h),
        "mlp.down_proj.weight": (h, f),
    }


def read_layer(
    reader: Reader, shape: DecoderShape, *, qkv_bias: bool = False, qk_norm: bool = False
) -> Layer:
    """Read one layer; projections that share an input are fused."""
    qkv = tuple(f"self_attn.{name}" for name in projection_rows(shape))
    return Layer(
        attention_norm=reader.norm("input_layernorm"),
        attention=Attention(
            qkv=reader.linear(*qkv, bias=qkv_bias),
            out=reader.linear("self_attn.o_proj"),
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            eps=shape.rms_eps,
            q_norm=reader.norm("self_attn.q_norm") if qk_norm else None,
            k_norm=reader.norm("self_attn.k_norm") if qk_norm else None,
        ),
        feed_forward_norm=reader.norm("post_attention_layernorm"),
        feed_forward=FeedForward(
            gate_up=reader.linear("mlp.gate_proj", "mlp.up_proj"),
            down=reader.linear("mlp.down_proj"),
        ),
        eps=shape.rms_eps,
    )
