"""A decoder: rows of token ids in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.models.blocks import Launch, Layer
from alula.models.families import FAMILIES
from alula.models.placement import Placement, Reader
from alula.models.progress import Progress
from alula.models.rope import inverse_frequencies
from alula.models.weights import WeightSource
from alula.ops.attention import Heads
from alula.ops.linear import Weight
from alula.ops.norm import Norm, Normed
from alula.ops.prepare import Prepared
from alula.ops.rope import Rotation, rotary_table
from alula.ops.rows import Rows
from alula.ops.store import places
from alula.shapes.decoder import DecoderShape


class Hidden(NamedTuple):
    """What a forward pass leaves of R rows."""

    last: Normed
    """[R, h] under the final norm."""
    aux: tuple[Tensor, ...]
    """[R, h] each: the residual stream at the tapped layers, in the order of the taps."""


class Decoder:
    """A dense decoder of any family."""

    def __init__(
        self,
        shape: DecoderShape,
        placement: Placement,
        *,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: Weight,
    ) -> None:
        self.shape = shape
        self.device = placement.device
        self.dtype = placement.dtype
        self.kernels = placement.kernels
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head
        self.cache_dtype = placement.residual_dtype
        self._heads = Heads(shape.heads, shape.kv_heads)
        self._residual_dtype = placement.residual_dtype
        frequencies, self._rotary_scale = inverse_frequencies(shape.rope, shape.head_dim)
        self._frequencies = frequencies.to(placement.device)

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token takes in the key-value pool."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * self.cache_dtype.itemsize

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of ids [R] in the residual stream's dtype, [R, h]."""
        return self.embedding[ids].to(self._residual_dtype)

    def rotation(self, positions: Tensor) -> Rotation:
        """That of positions [R]."""
        return rotary_table(self._frequencies, positions, self._rotary_scale)

    @torch.inference_mode()
    def forward(
        self,
        ids: Tensor,
        rows: Rows,
        pool: KVPool,
        taps: tuple[int, ...] = (),
        prepared: Prepared | None = None,
    ) -> Hidden:
        """Compute rows of token ids [R], writing their keys and values to the pool.

        `taps`: layer numbers (0 … layers) whose *input* residual stream is kept; `layers` means
        the last one's output, before the final norm. `prepared`: what is known of the rows already.
        """
        kernels = self.kernels
        plan = kernels.plan(rows, pool.page_size, self._heads)
        pool.clear_unwritten(plan)
        rotation = prepared.rotation if prepared else self.rotation(rows.positions)
        at = prepared.places if prepared else places(rows.slots, pool.page_size)
        launch = Launch(kernels, rotation, at, plan, pool)
        eps = self.shape.rms_eps
        first, *others = (layer.attention_norm for layer in self.layers)
        norms = (Norm(weight, eps) for weight in (*others, self.norm))
        stream = kernels.embed(
            ids, self.embedding, self._residual_dtype, Norm(first, eps), 2 * len(self.layers)
        )
        tapped = {0: stream.x}
        for index, (layer, following) in enumerate(zip(self.layers, norms, strict=True)):
            stream = layer(stream, index, launch, following)
            tapped[index + 1] = stream.x
        return Hidden(stream.normed, tuple(tapped[tap] for tap in taps))

    @torch.inference_mode()
    def logits(self, hidden: Normed) -> Tensor:
        """Next-token logits of rows as `forward` leaves them in `last`: [R, V] in fp32."""
        return self.kernels.project(hidden, self.head, torch.float32)

    def weights(self) -> Iterator[Weight]:
        """All linear weights, layer by layer, the head last."""
        for layer in self.layers:
            yield from layer.weights()
        yield self.head


def read_decoder(
    shape: DecoderShape, source: WeightSource, placement: Placement, progress: Progress
) -> Decoder:
    """Read a decoder from a checked source, one layer's tensors in memory at a time."""
    reader = Reader(source, placement)
    family = FAMILIES[shape.family]
    with progress("loading", shape.layers + 1) as task:
        layers = []
        for index in range(shape.layers):
            layers.append(family.layer(reader.below(f"model.layers.{index}"), shape))
            task.advance(1)
        embedding = reader.embedding("model.embed_tokens")
        head = "model.embed_tokens" if shape.tied_head else "lm_head"
        decoder = Decoder(
            shape,
            placement,
            embedding=embedding,
            layers=layers,
            norm=reader.norm("model.norm"),
            head=reader.head(head),
        )
        task.advance(1)
    return decoder
