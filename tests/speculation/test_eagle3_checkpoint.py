import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from alula.errors import MachineError, ModelError
from alula.shapes.rope import Llama3Scaling
from alula.speculation.eagle3_checkpoint import load, random_checkpoint, save
from alula.speculation.eagle3_config import default_taps, read_config, write_config

TARGET = {"hidden_size": 32, "vocab_size": 50, "layers": 10}
AUX = "eagle_aux_hidden_state_layer_ids"


def _checkpoint(**settings):
    numbers = {**TARGET, "heads": 4, "kv_heads": 2, "draft_vocab_size": 20, **settings}
    return random_checkpoint(**numbers)


@pytest.fixture
def saved(tmp_path):
    save(_checkpoint(), tmp_path)
    return tmp_path


def _rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    save_file(change(tensors), path)


def _reconfigure(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def _same(left, right):
    assert left.config == right.config
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert tensor.dtype == right.tensors[name].dtype
        assert torch.equal(tensor, right.tensors[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": torch.bfloat16},
        {"draft_vocab_size": None},
        {"aux_layers": (0, 4, 9)},
        {"aux_layers": (3,)},
        {"norm_before_residual": True, "norm_before_fc": True},
        {"fc_norm": True, "norm_output": True},
        {"rope_theta": 1e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"layers": 3},
    ],
)
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, settings):
    checkpoint = _checkpoint(**settings)
    save(checkpoint, tmp_path / "new")
    _same(load(tmp_path / "new"), checkpoint)
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_random_weights_depend_on_the_seed_alone():
    _same(_checkpoint(seed=3), _checkpoint(seed=3))
    assert not torch.equal(
        _checkpoint(seed=4).tensors["fc.weight"], _checkpoint().tensors["fc.weight"]
    )


def test_other_spellings_of_the_names_are_read(saved):
    expected = load(saved)
    _rewrite(
        saved, lambda t: {f"model.{n.replace('midlayer', 'layers.0')}": v for n, v in t.items()}
    )
    _same(load(saved), expected)


def test_legacy_norm_names_are_read(tmp_path):
    expected = _checkpoint(fc_norm=True)
    save(expected, tmp_path)
    names = {
        f"fc_norm.{i}.weight": f"aux_norm_{n}.weight" for i, n in enumerate(["low", "mid", "high"])
    }
    _rewrite(tmp_path, lambda t: {names.get(n, n): v for n, v in t.items()})
    _reconfigure(tmp_path, fc_norm=None, use_aux_norm=True)
    _same(load(tmp_path), expected)


def test_weights_in_several_files_are_read(saved):
    expected = load(saved)
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, saved / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    _same(load(saved), expected)


def test_a_pickle_of_tensors_is_read_and_any_other_refused(saved):
    expected = load(saved)
    tensors = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    torch.save(tensors, saved / "pytorch_model.bin")
    _same(load(saved), expected)
    torch.save({"fc.weight": pytest.approx(1.0)}, saved / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        load(saved)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t | {"midlayer.self_attn.q_norm.weight": torch.ones(8)}, "q_norm"),
        (lambda t: t | {"midlayer.self_attn.q_proj.bias": torch.ones(32)}, r"q_proj\.bias"),
        (lambda t: t | {"layers.1.mlp.up_proj.weight": torch.ones(8)}, r"layers\.1"),
        (lambda t: t | {"fc_norm.0.weight": torch.ones(32)}, r"fc_norm\.0"),
        (lambda t: t | {"layers.0.hidden_norm.weight": torch.ones(32)}, "twice"),
        (lambda t: {n: v for n, v in t.items() if n != "norm.weight"}, r"lacks norm\.weight"),
        (lambda t: {n: v for n, v in t.items() if n != "d2t"}, "lacks d2t"),
        (lambda t: t | {"fc.weight": torch.ones(32, 64)}, r"fc\.weight has the wrong shape"),
        (lambda t: t | {"fc.weight": t["fc.weight"].to(torch.int8)}, r"fc\.weight"),
        (lambda t: t | {"d2t": t["d2t"] + 40}, "d2t names the token"),
        (lambda t: t | {"t2d": ~t["t2d"]}, "t2d marks 30 tokens, not the 20"),
    ],
)
def test_tensors_that_do_not_belong_are_refused_by_name(saved, change, named):
    _rewrite(saved, change)
    with pytest.raises(ModelError, match=named):
        load(saved)


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"kv_lora_rank": 512}, "MLA"),
        ({"num_hidden_layers": 2}, "num_hidden_layers = 2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"sliding_window": 512}, "sliding_window"),
        ({AUX: "2,5,7"}, AUX),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_settings_that_are_not_run_are_refused_by_name(saved, entries, named):
    _reconfigure(saved, **entries)
    with pytest.raises(ModelError, match=named):
        load(saved)


def test_files_that_are_missing_or_damaged_are_named(saved, tmp_path):
    with pytest.raises(ModelError, match="there is no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"it has no config\.json"):
        load(tmp_path / "empty")
    (saved / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        load(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load(saved)


@pytest.mark.parametrize(
    "index",
    [
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "b"}}',
        "[" * 99999,
    ],
)
def test_a_damaged_index_is_refused(saved, index):
    (saved / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"index\.json"):
        load(saved)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04" * 9, b"\x80\x02K\x01."])
def test_a_damaged_pickle_is_refused(saved, content):
    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        load(saved)


def test_a_folder_that_cannot_be_written_is_the_machines_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError):
        save(_checkpoint(), tmp_path / "file" / "drafter")


def test_a_failed_save_leaves_the_old_drafter(saved, monkeypatch):
    expected = load(saved)

    def broken(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("alula.speculation.eagle3_checkpoint.save_file", broken)
    with pytest.raises(MachineError, match="disk full"):
        save(_checkpoint(seed=9), saved)
    _same(load(saved), expected)
    assert len(list(saved.iterdir())) == 2


def _config(**entries):
    return read_config(write_config(_checkpoint().config, "float32") | entries)


def test_layer_ids_mean_inputs_at_the_top_level_and_outputs_when_nested():
    assert _config().taps(30) == default_taps(30) == (2, 15, 27)
    assert _config(**{AUX: [2, 5, 8]}).taps(10) == (2, 5, 8)
    nested = {"eagle_config": {AUX: [1, 4, 7]}}
    assert _config(**nested).taps(10) == (2, 5, 8)
    assert _config(**nested, **{AUX: [0, 3, 6]}).taps(10) == (0, 3, 6)
    assert _config(eagle_config={AUX: []}).aux_layers is None


def test_layer_ids_are_written_only_where_they_are_not_the_default():
    entries = write_config(_checkpoint().config, "float32")
    assert AUX not in entries and "eagle_config" not in entries
    entries = write_config(_checkpoint(aux_layers=(1, 4, 9)).config, "float32")
    assert entries[AUX] == [1, 4, 9]
    assert entries["eagle_config"] == {AUX: [0, 3, 8]}


def test_a_missing_rope_base_is_ten_thousand():
    entries = write_config(_checkpoint(rope_theta=1e6).config, "float32")
    assert read_config(entries).rope.base == 1e6
    del entries["rope_theta"]
    assert read_config(entries).rope.base == 10000.0


def test_rope_parameters_are_read_as_scaling():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    config = _config(rope_parameters=scaling | {"rope_theta": 5e5}, rope_theta=None)
    assert (config.rope.base, config.rope.scaling) == (5e5, Llama3Scaling(8.0, 1.0, 4.0, 512))
    assert read_config(write_config(config, "float32")) == config
    assert _config(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope_scaling is None


def test_the_nested_config_of_speculators_has_its_own_defaults():
    layer = write_config(_checkpoint().config, "float32")
    outer = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": layer.pop("draft_vocab_size"),
    }
    assert read_config(outer).norm_before_residual
    assert not read_config(outer | {"norm_before_residual": False}).norm_before_residual
    flags = read_config(outer | {"norm_before_fc": True, "norm_output": True})
    assert (flags.norm_before_fc, flags.norm_output, flags.draft_vocab_size) == (True, True, 20)
    assert not _config().norm_before_residual


@pytest.mark.parametrize(
    ("settings", "target", "named"),
    [
        ({}, {"hidden_size": 64}, "hidden size is 32, the target's 64"),
        ({}, {"vocab_size": 49}, "vocabulary is 50, the target's 49"),
        ({"aux_layers": (2, 5, 11)}, {}, "layer 11; the target has 10"),
        ({}, {"layers": 2}, "layer -1; the target has 2"),
        ({"target_hidden_size": 64}, {"hidden_size": 64}, "32, the target's 64"),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_both_numbers(settings, target, named):
    with pytest.raises(ModelError, match=named):
        _checkpoint(**settings).fit(**(TARGET | target))
    _checkpoint().fit(**TARGET)
