"""The frequencies of the rotary embedding, with their scaling applied."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from alula.shapes.rope import (
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    RopeShape,
    YarnScaling,
)


def inverse_frequencies(rope: RopeShape, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in fp32, and the factor on cosine and sine."""
    plain = 1.0 / rope.base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.scaling:
        case None:
            return plain, 1.0
        case LinearScaling(factor):
            return plain / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(plain, rope.base, scaling), scaling.attention_factor
        case FrequencyDivisors(values):
            return plain / torch.tensor(values), 1.0


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's ramp over the number of turns a frequency makes in the original context."""
    turns = scaling.original_max * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


def _yarn(plain: Tensor, base: float, scaling: YarnScaling) -> Tensor:
    """YaRN's ramp over the dimension, arXiv 2309.00071, section 3.2."""
    dim = 2 * len(plain)

    def dimension(turns: float) -> float:
        ratio = scaling.original_max / (turns * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), dim - 1)
    width = max(high - low, 0.001)  # both ends may meet
    divided = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / scaling.factor * divided + plain * (1 - divided)
