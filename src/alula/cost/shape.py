"""What a model is made of, as far as its cost goes: matrices, their formats, who reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from alula.cost.formats import BF16, PLAIN, Format, Formats


class Component(StrEnum):
    """A part of the model whose time is told apart."""

    ATTENTION = "attention projections"
    KV = "KV reading"
    DENSE = "dense MLP"
    EXPERTS = "routed experts"
    SHARED = "shared expert"
    ROUTER = "router"
    NORM = "norms"
    HEAD = "head"
    EMBEDDING = "embedding"
    DRAFTER = "drafter"


@dataclass(frozen=True)
class GroupedAttention:
    """Query heads that share key-value heads; multi-head attention where they are as many."""

    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool = False

    @property
    def kv_elements(self) -> int:
        """Elements that one layer keeps for one token."""
        return 2 * self.kv_heads * self.head_dim

    def flops_per_key(self) -> int:
        """Multiplications and additions for one query row to meet one key, all heads."""
        return 4 * self.heads * self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention, arXiv 2405.04434: one compressed vector for all heads."""

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def kv_elements(self) -> int:
        """Elements that one layer keeps for one token."""
        return self.kv_rank + self.rope_dim

    def flops_per_key(self) -> int:
        """As above, with the up-projections absorbed: every head meets the latent itself."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in all layers but the first `dense_layers`."""

    count: int
    active: int
    width: int
    dense_layers: int = 0
    shared: int = 0


class Matrix(NamedTuple):
    """Weights of one kind, all layers together.

    `shards` is how many ranks can each hold a part of their own: None for as many as divide it,
    1 for a matrix that every rank needs whole.
    """

    component: Component
    name: str
    weights: int
    format: Format
    shards: int | None = None

    @property
    def stored_bytes(self) -> float:
        """Bytes of one copy."""
        return self.weights * self.format.bytes_per_weight


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder."""

    name: str
    hidden: int
    layers: int
    vocab: int
    dense_width: int
    attention: GroupedAttention | LatentAttention
    experts: Experts | None = None
    tied_head: bool = False
    formats: Formats = PLAIN

    @property
    def dense_layers(self) -> int:
        """Layers with one MLP for all tokens."""
        return self.layers if self.experts is None else self.experts.dense_layers

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers

    @property
    def parameters(self) -> int:
        """All weights; a tied embedding counts once."""
        return sum(matrix.weights for matrix in self.matrices())

    @property
    def active_parameters(self) -> int:
        """Weights that one row meets; of the embedding table it reads one line, not counted."""
        unused = 0
        if self.experts is not None:
            share = 1 - self.experts.active / self.experts.count
            unused = round(share * self.expert_layers * self.experts.count * self.expert_weights)
        table = 0 if self.tied_head else self.vocab * self.hidden
        return self.parameters - unused - table

    @property
    def expert_weights(self) -> int:
        """Weights of one routed expert of one layer."""
        return 0 if self.experts is None else 3 * self.hidden * self.experts.width

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values that all layers keep for one token, one copy."""
        return self.layers * self.attention.kv_elements * self.formats.kv_bytes

    def with_attention(self, form: Format) -> ModelShape:
        """The same model with attention projections in another format."""
        return replace(self, formats=replace(self.formats, attention=form))

    def with_weights(self, form: Format) -> ModelShape:
        """The same model with every projection, expert and the head in another format."""
        kept = self.formats
        formats = replace(Formats.of({}, form), embedding=kept.embedding, kv_bytes=kept.kv_bytes)
        return replace(self, formats=formats)

    def matrices(self) -> tuple[Matrix, ...]:
        """All weights, by kind."""
        table = Matrix(
            Component.EMBEDDING, "embed_tokens", self.vocab * self.hidden, self.formats.embedding
        )
        head = Matrix(Component.HEAD, "lm_head", self.vocab * self.hidden, self.formats.head)
        if self.tied_head:
            outer: tuple[Matrix, ...] = (head,)
        else:
            outer = (table, head)
        return (*self._attention(), *self._mlp(), self._norms(), *outer)

    def _attention(self) -> tuple[Matrix, ...]:
        form, wide = self.formats.attention, self.hidden
        sizes: tuple[tuple[str, int, int | None], ...]
        match self.attention:
            case LatentAttention(heads, q_rank, kv_rank, nope, rope, value):
                sizes = (
                    ("q_a", q_rank * wide, 1),
                    ("q_b", heads * (nope + rope) * q_rank, None),
                    ("kv_a", (kv_rank + rope) * wide, 1),
                    ("kv_b", heads * (nope + value) * kv_rank, None),
                    ("o", wide * heads * value, None),
                )
            case GroupedAttention(heads, kv_heads, head_dim):
                sizes = (
                    ("q", heads * head_dim * wide, None),
                    ("kv", 2 * kv_heads * head_dim * wide, kv_heads),
                    ("o", wide * heads * head_dim, None),
                )
        return tuple(
            Matrix(Component.ATTENTION, name, self.layers * weights, form, shards)
            for name, weights, shards in sizes
        )

    def _mlp(self) -> tuple[Matrix, ...]:
        wide, forms, found = self.hidden, self.formats, []
        if self.dense_layers:
            weights = self.dense_layers * 3 * wide * self.dense_width
            found.append(Matrix(Component.DENSE, "mlp", weights, forms.dense))
        if (experts := self.experts) is not None:
            layers, one = self.expert_layers, self.expert_weights
            found.append(
                Matrix(Component.EXPERTS, "experts", layers * experts.count * one, forms.experts)
            )
            gate = layers * experts.count * wide
            found.append(Matrix(Component.ROUTER, "gate", gate, BF16, 1))
            if experts.shared:
                shared = layers * experts.shared * one
                found.append(Matrix(Component.SHARED, "shared", shared, forms.shared))
        return tuple(found)

    def _norms(self) -> Matrix:
        each = 2 * self.hidden
        match self.attention:
            case LatentAttention():
                each += self.attention.q_rank + self.attention.kv_rank
            case GroupedAttention(qk_norm=True):
                each += 2 * self.attention.head_dim
        return Matrix(Component.NORM, "norms", self.layers * each + self.hidden, BF16, 1)
