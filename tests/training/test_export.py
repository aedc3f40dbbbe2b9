"""What is exported is what public loaders expect: names, shapes, both kinds of layer ids."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from alula.errors import ModelError
from alula.shapes.decoder import DecoderShape
from alula.shapes.rope import RopeShape
from alula.speculation.eagle3_checkpoint import load
from alula.training.drafting import as_checkpoint, drafter_config, from_checkpoint
from alula.training.export import export
from alula.training.network import DraftNetwork

H, FF, HEADS, KV, D, V, VD = 64, 96, 4, 2, 16, 300, 80
TARGET = DecoderShape(
    family="llama",
    vocab_size=V,
    hidden_size=H,
    intermediate_size=FF,
    layers=30,
    heads=HEADS,
    kv_heads=KV,
    head_dim=D,
    rms_eps=1e-5,
    rope=RopeShape(100000.0, None),
    max_positions=8192,
    tied_head=True,
    qkv_bias=False,
    qk_norm=False,
    eos_ids=frozenset({2}),
    bos_id=1,
    dtype="float32",
)
# reference: what SGLang's and vLLM's loaders of LlamaForCausalLMEagle3 ask for.
PUBLIC = {
    "fc.weight": (H, 3 * H),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.self_attn.q_proj.weight": (HEADS * D, 2 * H),
    "midlayer.self_attn.k_proj.weight": (KV * D, 2 * H),
    "midlayer.self_attn.v_proj.weight": (KV * D, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, HEADS * D),
    "midlayer.post_attention_layernorm.weight": (H,),
    "midlayer.mlp.gate_proj.weight": (FF, H),
    "midlayer.mlp.up_proj.weight": (FF, H),
    "midlayer.mlp.down_proj.weight": (H, FF),
    "norm.weight": (H,),
    "lm_head.weight": (VD, H),
    "d2t": (VD,),
    "t2d": (V,),
}


def _checkpoint(layers: int = 30, **settings):
    config = drafter_config(replace(TARGET, layers=layers), VD, 1024)
    torch.manual_seed(0)
    network = DraftNetwork(replace(config, **settings))
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(1))[:VD].sort().values
    return as_checkpoint(network, ids, torch.float16), ids


def test_names_and_shapes_are_the_public_ones(tmp_path):
    checkpoint, ids = _checkpoint()
    export(checkpoint, tmp_path, "card")
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == PUBLIC
    assert {t.dtype for n, t in tensors.items() if n not in ("d2t", "t2d")} == {torch.float16}
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert torch.equal(torch.arange(VD) + tensors["d2t"], ids)
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)


def test_the_config_says_what_public_loaders_read(tmp_path):
    export(_checkpoint()[0], tmp_path, "card")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama"
    assert config["num_hidden_layers"] == 1
    assert config["tie_word_embeddings"] is False  # the target's head is tied
    assert (config["vocab_size"], config["draft_vocab_size"]) == (V, VD)
    assert config["rope_theta"] == 100000.0
    assert config["torch_dtype"] == "float16"
    # Default layers: without ids all readers agree.
    assert "eagle_aux_hidden_state_layer_ids" not in config and "eagle_config" not in config


def test_layers_that_are_not_the_default_are_named_under_both_meanings(tmp_path):
    export(_checkpoint(layers=6)[0], tmp_path, "card")
    config = json.loads((tmp_path / "config.json").read_text())
    name = "eagle_aux_hidden_state_layer_ids"
    assert config[name] == [2, 4, 6]  # vLLM: the state before these layers
    assert config["eagle_config"][name] == [1, 3, 5]  # SGLang: the output of these
    assert load(tmp_path).config.taps(6) == (2, 4, 6)


@pytest.mark.parametrize("settings", [{}, {"norm_before_fc": True, "norm_output": True}])
def test_a_round_trip_keeps_every_bit(tmp_path, settings):
    checkpoint, ids = _checkpoint(**settings)
    export(checkpoint, tmp_path, "card")
    again = load(tmp_path)
    assert again.config == checkpoint.config
    assert torch.equal(again.target_ids, ids)
    second = as_checkpoint(from_checkpoint(again), again.target_ids, torch.float16)
    assert second.tensors.keys() == checkpoint.tensors.keys()
    for name, tensor in checkpoint.tensors.items():
        assert torch.equal(tensor, again.tensors[name]), name
        assert torch.equal(tensor, second.tensors[name]), name


def test_numbers_beyond_half_precision_are_refused(tmp_path):
    checkpoint, _ = _checkpoint()
    checkpoint.tensors["fc.weight"][0, 0] = torch.inf
    with pytest.raises(ModelError, match=r"fc\.weight cannot be exported"):
        export(checkpoint, tmp_path, "card")
    assert not (tmp_path / "config.json").exists()
