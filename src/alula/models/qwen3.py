"""Qwen3, dense: Llama with a norm on every head's query and key."""

from __future__ import annotations

from alula.models.blocks import Layer, Shapes, layer_tensors, read_layer
from alula.models.placement import Reader
from alula.shapes.decoder import DecoderShape


def tensors(shape: DecoderShape) -> Shapes:
    """Names within a layer, and shapes."""
    norms = {f"self_attn.{name}.weight": (shape.head_dim,) for name in ("q_norm", "k_norm")}
    return {**layer_tensors(shape), **norms}


def layer(reader: Reader, shape: DecoderShape) -> Layer:
    """Read one layer."""
    return read_layer(reader, shape, qk_norm=True)
