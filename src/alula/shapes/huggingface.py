"""A decoder's shape from Hugging Face's `config.json` and `generation_config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from alula.shapes.decoder import DecoderShape
from alula.shapes.fields import Fields, unknown_architecture
from alula.shapes.rope import LinearScaling, Llama3Scaling, RopeScaling, RopeShape, YarnScaling

# Mistral without its sliding window is Llama by another name.
_FAMILY = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_DTYPES = ("float32", "float16", "bfloat16")
_ROPE_TYPES = "supported: default, linear, llama3, yarn"


def decoder_shape(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> DecoderShape:
    """Read `config`; end-of-sequence ids of `generation` go before those of `config`.

    Raises ModelError, naming it, for an unknown architecture, a setting alula does not run, a
    missing or malformed entry.
    """
    fields = Fields(config, "config.json")
    family = _FAMILY.get(fields.text("model_type"))
    if family is None:
        raise unknown_architecture(config["model_type"], fields.origin, tuple(_FAMILY))
    _refuse_unsupported(fields)
    hidden_size = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    return DecoderShape(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", 128 if family == "qwen3" else hidden_size // heads),
        rms_eps=fields.number("rms_norm_eps"),
        rope=rope_shape(fields),
        max_positions=fields.integer("max_position_embeddings"),
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        eos_ids=_eos_ids(fields, generation),
        bos_id=min(fields.token_ids("bos_token_id"), default=None),
        dtype=_dtype(fields),
    )


def _refuse_unsupported(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.unsupported("hidden_act", activation, "supported: silu")
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(key, False):
            raise fields.unsupported(key, True, "supported: false")
    if (quantised := fields.mapping("quantization_config")) is not None:
        method = quantised.text("quant_method", "unnamed")
        raise fields.unsupported(
            "quantization_config", method, "supported: float32, float16, bfloat16, or a GGUF file"
        )
    _refuse_sliding_window(fields)


def _refuse_sliding_window(fields: Fields) -> None:
    """Refuse a window that some layer uses; one that is only mentioned does no harm."""
    if kinds := fields.texts("layer_types"):
        for kind in kinds:
            if kind != "full_attention":
                raise fields.unsupported("layer_types", kind, "supported: full_attention")
        return
    window = fields.raw("sliding_window")
    if fields.raw("model_type") != "mistral":
        first = fields.raw("max_window_layers")
        behind = isinstance(first, int) and first >= fields.integer("num_hidden_layers")
        window = window if fields.flag("use_sliding_window", False) and not behind else None
    if window is not None:
        raise fields.unsupported(
            "sliding_window", window, "supported: attention over the whole context"
        )


def _eos_ids(fields: Fields, generation: Mapping[str, Any] | None) -> frozenset[int]:
    chosen = Fields(generation or {}, "generation_config.json").token_ids("eos_token_id")
    return chosen or fields.token_ids("eos_token_id")


def _dtype(fields: Fields) -> str:
    name = fields.text("dtype", fields.text("torch_dtype", "float32")).removeprefix("torch.")
    if name not in _DTYPES:
        raise fields.unsupported("dtype", name, f"supported: {', '.join(_DTYPES)}")
    return name


def rope_shape(fields: Fields) -> RopeShape:
    """transformers ≥ 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling`."""
    group = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    base = fields.number("rope_theta", 10000.0)
    if group is None:
        return RopeShape(base)
    partial = group.number("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise group.unsupported("partial_rotary_factor", partial, "supported: 1.0")
    return RopeShape(group.number("rope_theta", base), _scaling(group, fields))


def _scaling(group: Fields, fields: Fields) -> RopeScaling | None:
    kind = group.text("rope_type", group.text("type", "default"))
    common = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
    match kind:
        case "default":
            group.only(*common)
            return None
        case "linear":
            group.only(*common, "factor")
            return LinearScaling(group.number("factor"))
        case "llama3":
            ramp = ("low_freq_factor", "high_freq_factor")
            group.only(*common, "factor", *ramp, "original_max_position_embeddings")
            return Llama3Scaling(
                factor=group.number("factor"),
                low_freq_factor=group.number("low_freq_factor"),
                high_freq_factor=group.number("high_freq_factor"),
                original_max=group.integer("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(group, fields, common)
        case _:
            raise group.unsupported("rope_type", kind, _ROPE_TYPES)


def _yarn(group: Fields, fields: Fields, common: tuple[str, ...]) -> YarnScaling:
    betas = ("beta_fast", "beta_slow")
    original = "original_max_position_embeddings"
    group.only(*common, "factor", original, "attention_factor", *betas)
    factor = group.number("factor")
    return YarnScaling(
        factor=factor,
        original_max=group.integer(original, fields.integer("max_position_embeddings")),
        attention_factor=group.number("attention_factor", yarn_attention_factor(factor)),
        beta_fast=group.number("beta_fast", 32.0),
        beta_slow=group.number("beta_slow", 1.0),
    )


def yarn_attention_factor(factor: float) -> float:
    """YaRN's recommended scale of cosine and sine, arXiv 2309.00071, equation 22."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
