"""What GGUF metadata says, and what alula refuses of it by name."""

from __future__ import annotations

from typing import Any

import pytest

from alula.errors import ModelError
from alula.shapes.gguf import ROPE_DIVISORS, TIED_HEAD, decoder_shape
from alula.shapes.rope import FrequencyDivisors, LinearScaling, YarnScaling

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": 3,
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 5,
    TIED_HEAD: True,
}


def test_smollm2_is_read_whole() -> None:
    shape = decoder_shape(METADATA)
    assert (shape.family, shape.layers, shape.hidden_size, shape.head_dim) == (
        *("llama", 30, 576),
        64,
    )
    assert (shape.heads, shape.kv_heads, shape.vocab_size) == (9, 3, 49152)
    assert (shape.rope.base, shape.rope.scaling, shape.dtype) == (100000.0, None, "float32")
    assert shape.tied_head
    assert shape.eos_ids == {2, 5}
    assert shape.bos_id == 1


def test_the_vocabulary_is_counted_where_its_size_is_not_told() -> None:
    metadata = {k: v for k, v in METADATA.items() if k != "llama.vocab_size"}
    assert decoder_shape(metadata | {"tokenizer.ggml.tokens": ["a"] * 77}).vocab_size == 77


def test_scalings_are_read() -> None:
    def scaling(**entries: Any) -> object:
        return decoder_shape(
            METADATA | {f"llama.rope.scaling.{k}": v for k, v in entries.items()}
        ).rope.scaling

    assert scaling(type="linear", factor=4.0) == LinearScaling(4.0)
    yarn = scaling(type="yarn", factor=4.0, original_context_length=2048)
    assert isinstance(yarn, YarnScaling)
    assert yarn.attention_factor == pytest.approx(1.138629436)
    divisors = decoder_shape(METADATA | {ROPE_DIVISORS: [1.0] * 32}).rope.scaling
    assert divisors == FrequencyDivisors((1.0,) * 32)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.sliding_window": 4096}, "sliding_window"),
        ({"llama.rope.dimension_count": 32}, "dimension_count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
    ],
)
def test_what_alula_does_not_run_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        decoder_shape({**METADATA, **change})
    assert named in caught.value.what


def test_an_unknown_architecture_is_told_the_known_ones() -> None:
    with pytest.raises(ModelError, match="llama, qwen2, qwen3"):
        decoder_shape({**METADATA, "general.architecture": "gemma3"})


def test_divisors_of_another_head_are_refused() -> None:
    with pytest.raises(ModelError, match=r"rope_freqs\.weight holds 4 values"):
        decoder_shape(METADATA | {ROPE_DIVISORS: [1.0] * 4})
