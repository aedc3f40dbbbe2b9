"""The decoder families by the name their shape gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from alula.models import llama, qwen2, qwen3
from alula.models.blocks import Layer, Shapes
from alula.models.placement import Reader
from alula.shapes.decoder import DecoderShape


class Family(NamedTuple):
    """What one kind of decoder adds to the shared blocks."""

    tensors: Callable[[DecoderShape], Shapes]
    layer: Callable[[Reader, DecoderShape], Layer]


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(llama.tensors, llama.layer),
        "qwen2": Family(qwen2.tensors, qwen2.layer),
        "qwen3": Family(qwen3.tensors, qwen3.layer),
    }
)


def expected_tensors(shape: DecoderShape) -> Shapes:
    """Every tensor of a checkpoint of this shape, under Hugging Face names."""
    layer = FAMILIES[shape.family].tensors(shape)
    table = (shape.vocab_size, shape.hidden_size)
    return {
        "model.embed_tokens.weight": table,
        **{f"model.layers.{i}.{n}": s for i in range(shape.layers) for n, s in layer.items()},
        "model.norm.weight": (shape.hidden_size,),
        **({} if shape.tied_head else {"lm_head.weight": table}),
    }
