"""A decoder's shape from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alula.shapes.decoder import FAMILIES, DecoderShape
from alula.shapes.fields import Fields, unknown_architecture
from alula.shapes.huggingface import yarn_attention_factor
from alula.shapes.rope import FrequencyDivisors, LinearScaling, RopeScaling, RopeShape, YarnScaling

TIED_HEAD = "alula.tied_head"
ROPE_DIVISORS = "alula.rope_divisors"
"""Keys a reader adds to the metadata for what only the file's tensors tell."""

_EOS_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_DTYPE_OF_FILE_TYPE = {1: "float16", 32: "bfloat16"}


def decoder_shape(metadata: Mapping[str, Any]) -> DecoderShape:
    """Read the file's metadata, with `TIED_HEAD` and, where it has them, `ROPE_DIVISORS` added.

    Raises ModelError, naming it, for an unknown architecture, a setting alula does not run, a
    missing or malformed entry.
    """
    fields = Fields(metadata, "the GGUF metadata")
    family = fields.text("general.architecture")
    if family not in FAMILIES:
        raise unknown_architecture(family, fields.origin, FAMILIES)
    _refuse_unsupported(fields, family)
    hidden_size = fields.integer(f"{family}.embedding_length")
    heads = fields.integer(f"{family}.attention.head_count")
    head_dim = fields.integer(f"{family}.attention.key_length", hidden_size // heads)
    _refuse_partial(fields, family, head_dim)
    return DecoderShape(
        family=family,
        vocab_size=fields.integer(f"{family}.vocab_size", _vocab_size(fields)),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{family}.feed_forward_length"),
        layers=fields.integer(f"{family}.block_count"),
        heads=heads,
        kv_heads=fields.integer(f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, family),
        max_positions=fields.integer(f"{family}.context_length"),
        tied_head=fields.flag(TIED_HEAD),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        eos_ids=frozenset().union(*(fields.token_ids(key) for key in _EOS_KEYS)),
        bos_id=min(fields.token_ids("tokenizer.ggml.bos_token_id"), default=None),
        dtype=_DTYPE_OF_FILE_TYPE.get(fields.raw("general.file_type"), "float32"),
    )


def _vocab_size(fields: Fields) -> int | None:
    tokens = fields.raw("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else None


def _refuse_unsupported(fields: Fields, family: str) -> None:
    for key in ("expert_count", "attention.sliding_window"):
        value = fields.raw(f"{family}.{key}")
        if value:
            raise fields.unsupported(f"{family}.{key}", value, "supported: none")


def _refuse_partial(fields: Fields, family: str, head_dim: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        value = fields.integer(f"{family}.{key}", head_dim)
        if value != head_dim:
            raise fields.unsupported(f"{family}.{key}", value, f"supported: the head's {head_dim}")


def _rope(fields: Fields, family: str) -> RopeShape:
    base = fields.number(f"{family}.rope.freq_base", 10000.0)
    divisors = fields.raw(ROPE_DIVISORS)
    scaling = _scaling(fields, f"{family}.rope.scaling")
    if divisors is None:
        return RopeShape(base, scaling)
    if scaling is not None:
        raise fields.unsupported(f"{family}.rope.scaling", scaling, "not beside rope_freqs.weight")
    return RopeShape(base, FrequencyDivisors(tuple(divisors)))


def _scaling(fields: Fields, prefix: str) -> RopeScaling | None:
    kind = fields.text(f"{prefix}.type", "none")
    match kind:
        case "none":
            return None
        case "linear":
            return LinearScaling(fields.number(f"{prefix}.factor"))
        case "yarn":
            factor = fields.number(f"{prefix}.factor")
            scale = fields.number(f"{prefix}.attn_factor", 1.0)
            return YarnScaling(
                factor=factor,
                original_max=fields.integer(f"{prefix}.original_context_length"),
                attention_factor=scale * yarn_attention_factor(factor),
                beta_fast=fields.number(f"{prefix}.yarn_beta_fast", 32.0),
                beta_slow=fields.number(f"{prefix}.yarn_beta_slow", 1.0),
            )
        case _:
            raise fields.unsupported(f"{prefix}.type", kind, "supported: none, linear, yarn")
