"""Sizes of known models against what their makers publish."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from alula.cost.layout import Layout, weights_per_gpu
from alula.cost.reading.config import model_shape
from alula.cost.reading.model import find_model, known_models
from alula.cost.round import Setting
from alula.errors import ModelError
from priced import setting


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("kimi-k2.5", 1026.4, 31.69),
        ("kimi-k2", 1026.4, 31.69),
        ("deepseek-v3", 671.0, 36.6),
        ("llama-2-7b", 6.738, 6.607),
        ("llama-3.1-8b", 8.030, 7.505),
        ("llama-3.3-70b", 70.55, 69.5),
        ("qwen3-8b", 8.19, 7.57),
        ("qwen3-235b-a22b", 235.1, 21.6),
        ("smollm2", 0.1345, 0.1345),
    ],
)
def test_parameters_are_those_published(name: str, billions: float, active: float) -> None:
    shape = find_model(name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=2e-3)


def test_every_known_model_can_be_priced() -> None:
    for name in known_models():
        assert find_model(name).parameters > 0


def test_kimi_k25_needs_what_its_configuration_says() -> None:
    shape, layout = find_model("kimi-k2.5"), Layout(8)
    assert weights_per_gpu(shape, layout) / 1e9 == pytest.approx(76.2, abs=0.05)
    assert shape.kv_bytes_per_token / 1e3 == pytest.approx(70.3, abs=0.05)
    assert layout.kv_copies(shape) == 8
    stored = sum(matrix.stored_bytes for matrix in shape.matrices())
    assert stored / 1e9 == pytest.approx(594, abs=0.5)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_kimi_k25_exchanges_a_hidden_vector_per_row_twice_a_layer(rows: int) -> None:
    own = setting()
    works = own.works(rows)
    exchanges = [each for work in works for each in work.collectives]
    assert sum(each.count for each in exchanges) == 122
    assert {each.size_bytes for each in exchanges} == {rows * 14_336}


def test_kimi_k25_reads_6_10_gb_per_gpu_and_step() -> None:
    assert _read_gb(setting(), 1) == pytest.approx(6.10, abs=0.01)


@pytest.mark.parametrize(
    ("rows", "gigabytes"),
    [(2, 7.55), (4, 10.37), (8, 15.67), (16, 25.02), (32, 39.58), (64, 57.41)],
)
def test_bytes_grow_with_the_distinct_experts(rows: int, gigabytes: float) -> None:
    assert _read_gb(setting(), rows) == pytest.approx(gigabytes, rel=2e-3)


def _read_gb(own: Setting, rows: int) -> float:
    works = own.works(rows)
    return sum(work.read_bytes for work in works) / 1e9


def test_quantised_parts_are_told_from_those_on_the_ignore_list() -> None:
    formats = find_model("kimi-k2.5").formats
    assert formats.experts.bytes_per_weight == pytest.approx(0.5625)
    for kept in (formats.attention, formats.dense, formats.shared, formats.head):
        assert kept.bytes_per_weight == 2


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    _write(tmp_path, _config())
    assert find_model(str(tmp_path)) == find_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"torch_dtype": "float8"}, "float8"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_cannot_be_priced_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as refusal:
        model_shape(_config() | change, "it")
    assert named in f"{refusal.value.what} {refusal.value.why}"


def _groups(*pairs: tuple[dict[str, Any], list[str]], **more: Any) -> dict[str, Any]:
    groups = {f"group_{n}": {"weights": w, "targets": t} for n, (w, t) in enumerate(pairs)}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **more}


@pytest.mark.parametrize(
    ("quantised", "bytes_per_weight"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2 / 128),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn", "mlp.gate"]}, 1.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 0.5),
        (_groups(({"num_bits": 4, "type": "float", "group_size": 32}, ["Linear"])), 0.5 + 1 / 32),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            1.0,
        ),
    ],
)
def test_quantisations(quantised: dict[str, Any], bytes_per_weight: float) -> None:
    shape = model_shape(_config() | {"quantization_config": quantised}, "it")
    assert shape.formats.dense.bytes_per_weight == pytest.approx(bytes_per_weight, rel=1e-3)
    assert shape.formats.embedding.bytes_per_weight == 2


def test_each_part_has_the_format_of_the_group_that_targets_it() -> None:
    int4 = {"num_bits": 4, "type": "int", "group_size": 32}
    groups = ({"num_bits": 8, "type": "float"}, ["re:.*self_attn.*"]), (int4, ["re:.*mlp.*"])
    scheme = {"num_bits": 8, "type": "float"}
    quantised = _groups(*groups, kv_cache_scheme=scheme)
    formats = model_shape(_config() | {"quantization_config": quantised}, "it").formats
    assert (formats.attention.name, formats.dense.name) == ("fp8", "int4-g32")
    assert (formats.head.name, formats.kv_bytes) == ("bf16", 1.0)


def test_modules_that_are_not_converted_keep_their_format() -> None:
    quantised = {"quant_method": "fp8", "modules_to_not_convert": ["self_attn", "mlp.gate"]}
    formats = model_shape(_config() | {"quantization_config": quantised}, "it").formats
    assert (formats.attention.name, formats.dense.name) == ("bf16", "fp8")


@pytest.mark.parametrize(
    ("quantised", "named"),
    [
        (_groups(({"num_bits": 4, "type": "int", "group_size": 32}, ["Conv2d"])), "none of its"),
        (_groups(({"num_bits": 2**31 - 1, "type": "int"}, ["Linear"])), "num_bits"),
        (_groups(({"num_bits": 4, "type": "x"}, ["Linear"])), "type"),
        (_groups(({"num_bits": 6, "type": "float"}, ["Linear"])), "type"),
        (_groups(({"num_bits": 4}, ["re:("])), "re:("),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "awq", "bits": 4, "group_size": 0}, "group_size"),
    ],
)
def test_quantisations_that_cannot_be_priced_are_named(
    quantised: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        model_shape(_config() | {"quantization_config": quantised}, "it")
    assert named in f"{refusal.value.what} {refusal.value.why}"


@pytest.mark.parametrize("text", ["[" * 100_000, "3", "\xff"])
def test_a_file_that_holds_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match="cannot read"):
        find_model(str(tmp_path))


def test_absurd_numbers_of_experts_are_refused(tmp_path: Path) -> None:
    known = files("alula.cost") / "data/models/qwen3-235b-a22b.json"
    config = json.loads(known.read_text("utf-8"))
    _write(tmp_path, config | {"num_experts": 1 << 30})
    with pytest.raises(ModelError, match="1,073,741,824 experts"):
        find_model(str(tmp_path))


def test_an_unknown_name_lists_what_is_known() -> None:
    with pytest.raises(ModelError) as refusal:
        find_model("kimi-k9")
    assert "kimi-k2.5" in refusal.value.fix


def _config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "torch_dtype": "bfloat16",
    }


def _write(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
