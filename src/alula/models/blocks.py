"""The blocks a decoder layer is made of, and how they are read from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from alula.cache.pool import KVPool
from alula.models.placement import Reader
from alula.ops.attention import Heads, Plan
from alula.ops.kernels import Kernels
from alula.ops.layer import Store, Stream
from alula.ops.linear import Weight
from alula.ops.norm import Norm, Normed
from alula.ops.rope import Rotation
from alula.ops.store import HeadNorms, Places
from alula.shapes.decoder import DecoderShape

Shapes = dict[str, tuple[int, ...]]


class Launch(NamedTuple):
    """What the layers of one launch of R rows share."""

    kernels: Kernels
    rotation: Rotation
    at: Places
    plan: Plan
    pool: KVPool


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over the paged pool, with norms on query and key where given."""

    qkv: Weight
    out: Weight
    heads: Heads
    head_dim: int
    norms: HeadNorms | None = None

    def __call__(self, normed: Normed, index: int, launch: Launch) -> Tensor:
        """The heads' means of values [R, query * d] in layer `index`."""
        store = Store(launch.pool.keys(index), launch.pool.values(index), launch.at)
        q = launch.kernels.project_heads(
            normed, self.qkv, self.heads, launch.rotation, store, self.norms
        )
        return launch.plan.attend(q, store.keys, store.values, self.head_dim**-0.5).flatten(1)


@dataclass(frozen=True)
class FeedForward:
    """SwiGLU with gate and up in one projection."""

    gate_up: Weight
    down: Weight


@dataclass(frozen=True)
class Layer:
    """A pre-norm decoder layer."""

    attention_norm: Tensor
    attention: Attention
    feed_forward_norm: Tensor
    feed_forward: FeedForward
    eps: float

    def __call__(self, stream: Stream, index: int, launch: Launch, following: Norm) -> Stream:
        """The residual stream after layer `index`; `following` is the norm of who reads it next."""
        kernels, norm = launch.kernels, Norm(self.feed_forward_norm, self.eps)
        mixed = self.attention(stream.normed, index, launch)
        stream = kernels.add(stream, mixed, self.attention.out, norm)
        inner = kernels.gate(stream.normed, self.feed_forward.gate_up)
        return kernels.add(stream, inner, self.feed_forward.down, following)

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
            heads=Heads(shape.heads, shape.kv_heads),
            head_dim=shape.head_dim,
            norms=_head_norms(reader, shape.rms_eps) if qk_norm else None,
        ),
        feed_forward_norm=reader.norm("post_attention_layernorm"),
        feed_forward=FeedForward(
            gate_up=reader.linear("mlp.gate_proj", "mlp.up_proj"),
            down=reader.linear("mlp.down_proj"),
        ),
        eps=shape.rms_eps,
    )


def _head_norms(reader: Reader, eps: float) -> HeadNorms:
    return HeadNorms(reader.norm("self_attn.q_norm"), reader.norm("self_attn.k_norm"), eps)
