"""A model's shape from `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alula.cost.reading.quantisation import formats
from alula.cost.shape import Experts, GroupedAttention, LatentAttention, ModelShape
from alula.errors import ModelError
from alula.shapes.fields import Fields

_WRAPPERS = {"kimi_k25": "text_config"}
_LATENT = ("deepseek_v3", "kimi_k2")
_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_SPARSE = ("qwen3_moe",)
_KNOWN = (*_DENSE, *_SPARSE, *_LATENT, *_WRAPPERS)


def model_shape(config: Mapping[str, Any], name: str) -> ModelShape:
    """Read `config`. A multimodal model is its text part: the vision tower runs once per image.

    Raises ModelError, naming it, for an unknown architecture, a missing or malformed entry.
    """
    fields = Fields(config, f"config.json of {name}")
    kind = fields.text("model_type")
    if (inner := _WRAPPERS.get(kind)) is not None:
        text = fields.mapping(inner)
        if text is None:
            fields.text(inner)  # raises: it is missing
        return model_shape({"model_type": "", **config[inner]}, name)
    if kind in _LATENT:
        return _latent(fields, name)
    if kind in (*_DENSE, *_SPARSE):
        return _grouped(fields, name, kind)
    raise ModelError(
        f"unknown architecture {kind!r}",
        f"{fields.origin} names it; alula prices {', '.join(_KNOWN)}",
        "choose a model of one of these architectures",
    )


def _grouped(fields: Fields, name: str, kind: str) -> ModelShape:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = 128 if kind.startswith("qwen3") else hidden // heads
    attention = GroupedAttention(
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", head_dim),
        qk_norm=kind.startswith("qwen3"),
    )
    experts = None
    if kind in _SPARSE:
        if fields.integer("decoder_sparse_step", 1) != 1 or fields.raw("mlp_only_layers"):
            raise _mixed(fields)
        experts = Experts(
            count=fields.integer("num_experts"),
            active=fields.integer("num_experts_per_tok"),
            width=fields.integer("moe_intermediate_size"),
        )
    return _shape(fields, name, attention, experts)


def _latent(fields: Fields, name: str) -> ModelShape:
    attention = LatentAttention(
        heads=fields.integer("num_attention_heads"),
        q_rank=fields.integer("q_lora_rank"),
        kv_rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        value_dim=fields.integer("v_head_dim"),
    )
    dense_layers = fields.raw("first_k_dense_replace")
    experts = Experts(
        count=fields.integer("n_routed_experts"),
        active=fields.integer("num_experts_per_tok"),
        width=fields.integer("moe_intermediate_size"),
        dense_layers=0 if dense_layers == 0 else fields.integer("first_k_dense_replace"),
        shared=0 if fields.raw("n_shared_experts") == 0 else fields.integer("n_shared_experts"),
    )
    return _shape(fields, name, attention, experts)


def _shape(
    fields: Fields,
    name: str,
    attention: GroupedAttention | LatentAttention,
    experts: Experts | None,
) -> ModelShape:
    layers = fields.integer("num_hidden_layers")
    if experts is not None and not experts.dense_layers < layers:
        raise _contradiction(fields, f"{experts.dense_layers} dense layers of {layers}")
    if experts is not None and experts.active > experts.count:
        raise _contradiction(fields, f"{experts.active} experts chosen among {experts.count}")
    return ModelShape(
        name=name,
        hidden=fields.integer("hidden_size"),
        layers=layers,
        vocab=fields.integer("vocab_size"),
        dense_width=fields.integer("intermediate_size"),
        attention=attention,
        experts=experts,
        tied_head=fields.flag("tie_word_embeddings", False),
        formats=formats(fields),
    )


def _mixed(fields: Fields) -> ModelError:
    return ModelError(
        "alula does not price models that mix dense and sparse layers at will",
        f"{fields.origin} has decoder_sparse_step or mlp_only_layers",
        "choose a model whose layers are all sparse",
    )


def _contradiction(fields: Fields, why: str) -> ModelError:
    return ModelError(
        "the model's sizes contradict each other",
        f"{fields.origin}: {why}",
        "use the model as its maker published it",
    )
