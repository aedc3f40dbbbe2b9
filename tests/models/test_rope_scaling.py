"""Frequencies equal transformers', for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from alula.models.rope import inverse_frequencies
from alula.shapes.huggingface import decoder_shape


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 3.0},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.3,
        },
    ],
)
def test_frequencies_equal_transformers(base: float, scaling: dict[str, Any]) -> None:
    config = transformers.LlamaConfig(
        head_dim=64,
        max_position_embeddings=16384,
        rope_parameters={**scaling, "rope_theta": base},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    found, found_factor = inverse_frequencies(decoder_shape(config.to_dict()).rope, 64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert found_factor == pytest.approx(factor)
