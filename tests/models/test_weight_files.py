"""Damaged, foreign and unfitting weights are refused with what, why and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from alula.errors import ModelError
from alula.models.families import expected_tensors
from alula.models.gguf_file import GgufWeights
from alula.models.load import load
from alula.models.safetensors_file import SafetensorsWeights, open_folder
from alula.models.weights import check
from alula.shapes import gguf as gguf_shape
from tiny_models import make, save_tokenizer, write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make("llama").save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add (or with None remove) tensors of the folder's file."""
    path = folder / "model.safetensors"
    content = {**load_file(path), **{k.replace("__", "."): v for k, v in tensors.items()}}
    save_file({k: v for k, v in content.items() if v is not None}, path)


NORM = "model__layers__1__input_layernorm__weight"


def refused(folder: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(str(folder), dtype="float32")
    assert caught.value.fix
    return caught.value


def test_a_missing_tensor_is_named_with_its_shape(folder: Path) -> None:
    change(folder, **{NORM: None})
    error = refused(folder)
    assert "model.layers.1.input_layernorm.weight is missing" in error.what
    assert "(64,)" in error.why


def test_an_extra_tensor_is_named_with_its_shape(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__q_proj__bias=torch.zeros(64))
    error = refused(folder)
    assert "model.layers.0.self_attn.q_proj.bias does not belong" in error.what
    assert "(64,)" in error.why


def test_a_misshaped_tensor_is_named_with_both_shapes(folder: Path) -> None:
    change(folder, **{NORM: torch.zeros(65)})
    error = refused(folder)
    assert "model.layers.1.input_layernorm.weight" in error.what
    assert "(64,)" in error.why
    assert "(65,)" in error.why


def test_rotary_frequencies_of_old_checkpoints_are_left_aside(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    load(str(folder), dtype="float32")


@pytest.mark.parametrize("kept", [0, 7, 100, 5000, -1])
def test_a_safetensors_file_cut_short_is_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors is damaged" in refused(folder).what


def test_a_foreign_safetensors_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>404</html>" * 100)
    assert "model.safetensors is damaged" in refused(folder).what


def test_a_folder_without_weights_says_what_it_lacks(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refused(folder).why


def test_a_config_that_is_no_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "config.json" in refused(folder).what
    (folder / "config.json").write_text("[]")
    assert "no JSON object" in refused(folder).why
    (folder / "config.json").write_bytes(b"\xff\xfe")
    assert "config.json" in refused(folder).what


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "two.safetensors")
    return tmp_path


def index(folder: Path, **homes: object) -> Path:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return folder


def test_shards_are_read_as_one(shards: Path) -> None:
    weights = open_folder(index(shards, a="one.safetensors", b="two.safetensors"))
    assert weights.names() == {"a", "b"}
    assert weights.shape("b") == (3,)
    assert torch.equal(weights.get("b"), torch.ones(3))


@pytest.mark.parametrize(
    ("homes", "told"),
    [
        ({"a": "one.safetensors", "b": "three.safetensors"}, "three.safetensors"),
        ({"a": "../one.safetensors"}, "does not lie beside it"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, "c is not in two.safetensors"),
        ({"a": 1}, "weight_map"),
    ],
)
def test_an_index_that_lies_is_refused(homes: dict[str, object], told: str, shards: Path) -> None:
    with pytest.raises(ModelError) as caught:
        open_folder(index(shards, **homes))
    assert told in caught.value.why


def test_a_tensor_in_two_shards_is_refused(shards: Path) -> None:
    save_file({"a": torch.zeros(2)}, shards / "two.safetensors")
    with pytest.raises(ModelError, match=r"a is also in one\.safetensors"):
        SafetensorsWeights([shards / "one.safetensors", shards / "two.safetensors"])


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "model.gguf", make("llama"), "Q8_0")
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("part", [0.0005, 0.01, 0.1, 0.3, 0.6, 0.99])
def test_a_gguf_file_cut_short_is_refused(gguf_file: Path, part: float) -> None:
    content = gguf_file.read_bytes()
    gguf_file.write_bytes(content[: max(int(len(content) * part), 4)])
    with pytest.raises(ModelError) as caught:
        load(str(gguf_file))
    assert "truncated" in caught.value.what
    assert "bytes" in caught.value.why


def test_noise_behind_the_magic_is_refused(gguf_file: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    for head in (b"GGUF", b"GGUF\x03\x00\x00\x00"):
        gguf_file.write_bytes(head + noise)
        with pytest.raises(ModelError, match="truncated or no GGUF"):
            load(str(gguf_file))


def test_a_quantisation_alula_does_not_read_is_named(tmp_path: Path) -> None:
    model = make("llama", hidden_size=256, intermediate_size=256, head_dim=64)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, "TQ2_0")
    with pytest.raises(ModelError) as caught:
        GgufWeights(path)
    assert "TQ2_0" in caught.value.what
    assert "Q4_K" in caught.value.why


def test_a_gguf_of_another_shape_than_its_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make("qwen2"), metadata={"qwen2.vocab_size": 200})
    weights = GgufWeights(path)
    with pytest.raises(ModelError, match=r"model\.embed_tokens\.weight has the wrong shape"):
        check(weights, expected_tensors(gguf_shape.decoder_shape(weights.metadata)))


def test_what_is_read_of_a_gguf_outlives_the_file(gguf_file: Path) -> None:
    weights = GgufWeights(gguf_file)
    norm = weights.get("model.norm.weight")
    norm += 1
    assert not torch.equal(norm, weights.get("model.norm.weight"))
