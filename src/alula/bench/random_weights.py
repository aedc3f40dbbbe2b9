"""Decoders of known shapes with random weights: for timing, and for tests of exactness."""

from __future__ import annotations

import zlib
from dataclasses import replace

import torch
from torch import Tensor

from alula.models.decoder import Decoder, read_decoder
from alula.models.families import expected_tensors
from alula.models.placement import Placement
from alula.models.progress import silent
from alula.shapes.decoder import DecoderShape
from alula.shapes.rope import RopeShape

SMOLLM2 = DecoderShape(
    family="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    rms_eps=1e-5,
    rope=RopeShape(100000.0, None),
    max_positions=8192,
    tied_head=True,
    qkv_bias=False,
    qk_norm=False,
    eos_ids=frozenset({2}),
    bos_id=1,
    dtype="bfloat16",
)
LLAMA_8B = replace(
    SMOLLM2,
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    rope=RopeShape(500000.0, None),
    tied_head=False,
)


class RandomWeights:
    """A weight source that makes each tensor on the device, the same one every time."""

    def __init__(self, shape: DecoderShape, device: torch.device) -> None:
        self._shapes = expected_tensors(shape)
        self._device = device

    def names(self) -> frozenset[str]:
        """See `WeightSource.names`."""
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `WeightSource.shape`."""
        return self._shapes[name]

    def get(self, name: str) -> Tensor:
        """A norm's weight near 1, a matrix that keeps its input's size."""
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(shape, generator=generator, device=self._device)
        return 1 + 0.1 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5


def random_decoder(
    shape: DecoderShape,
    device: torch.device,
    *,
    layers: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Decoder:
    """A decoder of `shape`, or of its first `layers` layers."""
    shape = replace(shape, layers=layers or shape.layers)
    return read_decoder(shape, RandomWeights(shape, device), Placement(device, dtype), silent)
