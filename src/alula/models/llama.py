"""Llama, and what is built like it: SmolLM2, Mistral without a sliding window."""

from __future__ import annotations

from alula.models.blocks import Layer, Shapes, layer_tensors, read_layer
from alula.models.placement import Reader
from alula.shapes.decoder import DecoderShape


def tensors(shape: DecoderShape) -> Shapes:
    """Names within a layer, and shapes."""
    return layer_tensors(shape)


def layer(reader: Reader, shape: DecoderShape) -> Layer:
    """Read one layer."""
    return read_layer(reader, shape)
