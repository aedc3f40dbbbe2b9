"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value."""

from __future__ import annotations

from alula.models.blocks import Layer, Shapes, layer_tensors, projection_rows, read_layer
from alula.models.placement import Reader
from alula.shapes.decoder import DecoderShape


def tensors(shape: DecoderShape) -> Shapes:
    """Names within a layer, and shapes."""
    biases = {f"self_attn.{name}.bias": (n,) for name, n in projection_rows(shape).items()}
    return {**layer_tensors(shape), **biases}


def layer(reader: Reader, shape: DecoderShape) -> Layer:
    """Read one layer."""
    return read_layer(reader, shape, qkv_bias=True)
