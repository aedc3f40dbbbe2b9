"""Logits equal transformers', for every family and way of storing it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from alula.models.decoder import Decoder, read_decoder
from alula.models.families import expected_tensors
from alula.models.gguf_file import QUANT_TYPES, GgufWeights
from alula.models.load import load
from alula.models.placement import Placement
from alula.models.progress import silent
from alula.models.weights import check
from alula.shapes import gguf as gguf_shape
from tiny_models import LLAMA3, chain, ids, logits, make, pool_for, save_tokenizer, write_gguf

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with one key-value head": ("llama", {"num_key_value_heads": 1}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
    ),
    "yarn rope": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def reference(model: transformers.PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[None]).logits[0]


def load_folder(model: transformers.PreTrainedModel, folder: Path) -> Decoder:
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return load(str(folder), dtype="float32").decoder


def read_gguf(path: Path) -> Decoder:
    weights = GgufWeights(path)
    shape = gguf_shape.decoder_shape(weights.metadata)
    check(weights, expected_tensors(shape))
    return read_decoder(shape, weights, Placement(torch.device("cpu"), torch.float32), silent)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_from_safetensors_equal_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = make(family, **changes)
    tokens = ids(100)
    found = logits(load_folder(model, tmp_path / "model"), tokens)
    assert found.dtype == torch.float32
    assert relative_error(found, reference(model, tokens)) < 1e-4


@pytest.mark.parametrize("variant", ["llama", "qwen3 tied"])
def test_sharded_weights_are_read_through_their_index(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = make(family, **changes)
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="100KB")
    save_tokenizer(folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    found = logits(load(str(folder), dtype="float32").decoder, ids())
    assert relative_error(found, reference(model, ids())) < 1e-4


@pytest.mark.parametrize("kind", QUANT_TYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_from_gguf_equal_transformers(family: str, kind: str, tmp_path: Path) -> None:
    model = make(
        family,
        hidden_size=256,
        intermediate_size=256,
        head_dim=64,
        num_hidden_layers=1,
        tie_word_embeddings=kind == "Q8_0",
    )
    write_gguf(tmp_path / "model.gguf", model, kind)
    found = logits(read_gguf(tmp_path / "model.gguf"), ids())
    assert relative_error(found, reference(model, ids())) < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gguf_is_read_as_transformers_reads_it(family: str, tmp_path: Path) -> None:
    """A second opinion on names and on the order of query and key rows."""
    model = make(family)
    path = tmp_path / "model.gguf"
    write_gguf(path, model)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    ours = GgufWeights(path)
    assert ours.names() == theirs.keys()
    assert all(torch.equal(ours.get(name), tensor) for name, tensor in theirs.items())


def llama3_divisor(frequency: float) -> float:
    """As llama.cpp's converter writes it, one frequency at a time."""
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    old = LLAMA3["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequency
    if wavelength < old / high:
        return 1.0
    if wavelength > old / low:
        return LLAMA3["factor"]
    smooth = (old / wavelength - low) / (high - low)
    return 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)


def test_llama3_scaling_is_read_from_rope_freqs_of_a_gguf(tmp_path: Path) -> None:
    model = make("llama", rope_parameters=LLAMA3)
    divisors = [llama3_divisor(10000.0 ** (-2 * i / 16)) for i in range(8)]
    write_gguf(tmp_path / "model.gguf", model, rope_divisors=divisors)
    decoder = read_gguf(tmp_path / "model.gguf")
    assert relative_error(logits(decoder, ids(100)), reference(model, ids(100))) < 1e-4


def test_taps_are_the_states_before_the_layers(tmp_path: Path) -> None:
    model = make("llama")
    decoder = load_folder(model, tmp_path / "model")
    taps = (0, 2, 1)
    hidden = decoder.forward(ids(), chain(0, 40), pool_for(decoder), taps)
    with torch.inference_mode():
        states = model(ids()[None], output_hidden_states=True).hidden_states
    assert len(hidden.aux) == len(taps)
    for found, tap in zip(hidden.aux, taps, strict=True):
        assert relative_error(found, states[tap][0]) < 1e-4
    again = decoder.forward(ids(), chain(0, 40), pool_for(decoder))
    assert torch.equal(hidden.last.values, again.last.values)


def test_a_row_is_the_same_alone_and_in_any_chunk(tmp_path: Path) -> None:
    decoder = load_folder(make("qwen3"), tmp_path / "model")
    tokens, whole = ids(70), None
    for chunk in (70, 33, 7, 1):
        pool = pool_for(decoder)
        parts = [
            decoder.forward(tokens[at : at + chunk], chain(at, len(tokens[at : at + chunk])), pool)
            for at in range(0, 70, chunk)
        ]
        found = torch.cat([decoder.logits(part.last) for part in parts])
        whole = found if whole is None else whole
        assert torch.equal(found, whole)


def test_bfloat16_weights_keep_the_residual_stream_in_fp32(tmp_path: Path) -> None:
    model = make("llama")
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    decoder = load(str(tmp_path), dtype="bfloat16").decoder
    assert decoder.embed(ids()).dtype == torch.float32
    found = logits(decoder, ids())
    assert found.dtype == torch.float32
    assert 1e-4 < relative_error(found, reference(model, ids())) < 0.1
