"""What config.json says, and what alula refuses of it by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.errors import ModelError
from alula.shapes.huggingface import decoder_shape
from alula.shapes.rope import LinearScaling, Llama3Scaling, RopeShape

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}


def test_llama_is_read_whole() -> None:
    shape = decoder_shape(CONFIG)
    assert (shape.family, shape.layers, shape.heads, shape.kv_heads) == ("llama", 16, 32, 8)
    assert (shape.head_dim, shape.max_positions, shape.dtype) == (64, 131072, "bfloat16")
    assert shape.rope == RopeShape(500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    assert shape.tied_head
    assert not shape.qkv_bias
    assert not shape.qk_norm
    assert shape.eos_ids == {128001, 128008, 128009}
    assert shape.bos_id == 128000


def test_rope_parameters_of_transformers_5_mean_the_same() -> None:
    old = decoder_shape(CONFIG)
    new = dict(CONFIG, rope_parameters={**CONFIG["rope_scaling"], "rope_theta": 500000.0})
    del new["rope_scaling"], new["rope_theta"]
    assert decoder_shape(new) == old


def test_the_old_name_of_the_rope_type_is_read() -> None:
    config = dict(CONFIG, rope_scaling={"type": "linear", "factor": 2.0})
    assert decoder_shape(config).rope.scaling == LinearScaling(2.0)


def test_generation_config_knows_the_end_better() -> None:
    assert decoder_shape(CONFIG, {"eos_token_id": 7}).eos_ids == {7}
    assert decoder_shape(CONFIG, {}).eos_ids == {128001, 128008, 128009}


@pytest.mark.parametrize(
    ("family", "bias", "norm"), [("qwen2", True, False), ("qwen3", False, True)]
)
def test_families_differ_in_bias_and_norm(family: str, bias: bool, norm: bool) -> None:
    shape = decoder_shape(dict(CONFIG, model_type=family, sliding_window=4096))
    assert (shape.family, shape.qkv_bias, shape.qk_norm) == (family, bias, norm)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "odd": 1}}, "odd"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window"),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 4096,
                "max_window_layers": 8,
            },
            "sliding_window",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_alula_does_not_run_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        decoder_shape({**CONFIG, **change})
    assert named in caught.value.what
    assert caught.value.why
    assert caught.value.fix


def test_an_unknown_architecture_is_told_the_known_ones() -> None:
    with pytest.raises(ModelError, match="llama, mistral, qwen2, qwen3"):
        decoder_shape(dict(CONFIG, model_type="gpt2"))


REQUIRED = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rms_norm_eps",
    "max_position_embeddings",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_entry_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=key):
        decoder_shape({k: v for k, v in CONFIG.items() if k != key})


@given(
    key=st.sampled_from([*REQUIRED, "num_key_value_heads", "head_dim", "rope_theta"]),
    value=st.sampled_from(["x", -1, 0, [], {}, True, float("nan")]),
)
def test_a_malformed_entry_is_refused_whatever_it_is(key: str, value: object) -> None:
    with pytest.raises(ModelError):
        decoder_shape(dict(CONFIG, **{key: value}))


def test_contradicting_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="32 attention heads cannot share 5"):
        decoder_shape(dict(CONFIG, num_key_value_heads=5))
    with pytest.raises(ModelError, match="two halves"):
        decoder_shape(dict(CONFIG, head_dim=63))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quantization_config": 4}, "quantization_config"),
        ({"layer_types": 4}, "layer_types"),
        ({"layer_types": [4]}, "layer_types"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rope_theta": 1.0}, "rotary base"),
        ({"rope_scaling": None, "rope_theta": 0.5}, "rotary base"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as refused:
        decoder_shape(CONFIG | change)
    assert named in f"{refused.value.what} {refused.value.why}"


@pytest.mark.parametrize("first", [28, "x", None])
def test_a_sliding_window_counts_unless_it_begins_behind_the_layers(first: object) -> None:
    config = dict(CONFIG, model_type="qwen2", sliding_window=64, use_sliding_window=True)
    config["max_window_layers"] = first
    if first == 28:
        assert decoder_shape(config).layers == 16
    else:
        with pytest.raises(ModelError, match="sliding_window"):
            decoder_shape(config)
