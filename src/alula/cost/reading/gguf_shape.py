"""A model's shape from the header of a GGUF file: sizes from its metadata, formats from tensors."""

from __future__ import annotations

from pathlib import Path

from alula.cost.formats import Format, Formats
from alula.cost.reading.gguf_header import Header, TensorInfo, read_header
from alula.cost.shape import Experts, GroupedAttention, LatentAttention, ModelShape
from alula.errors import ModelError
from alula.shapes.fields import Fields

# ggml's types: name, and bytes for how many weights (ggml-common.h).
_TYPES = {
    0: ("F32", 4, 1),
    1: ("F16", 2, 1),
    2: ("Q4_0", 18, 32),
    3: ("Q4_1", 20, 32),
    6: ("Q5_0", 22, 32),
    7: ("Q5_1", 24, 32),
    8: ("Q8_0", 34, 32),
    10: ("Q2_K", 84, 256),
    11: ("Q3_K", 110, 256),
    12: ("Q4_K", 144, 256),
    13: ("Q5_K", 176, 256),
    14: ("Q6_K", 210, 256),
    20: ("IQ4_NL", 18, 32),
    23: ("IQ4_XS", 136, 256),
    30: ("BF16", 2, 1),
    39: ("MXFP4", 17, 32),
}
_PARTS = {
    "attention": ("attn_q", "attn_k", "attn_v", "attn_output", "attn_kv", "attn_qkv"),
    "dense": ("ffn_gate.", "ffn_up.", "ffn_down."),
    "experts": ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    "shared": ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
    "head": ("output.",),
    "embedding": ("token_embd.",),
}
_KNOWN = ("llama", "qwen2", "qwen3", "qwen3moe", "deepseek2")


def model_shape(path: Path) -> ModelShape:
    """Read the file's header. Raises ModelError, naming it, for what it cannot price."""
    header = read_header(path)
    fields = Fields(header.metadata, f"the header of {path.name}")
    family = fields.text("general.architecture")
    if family not in _KNOWN:
        raise ModelError(
            f"unknown architecture {family!r}",
            f"{fields.origin} names it; alula prices {', '.join(_KNOWN)}",
            "choose a model of one of these architectures",
        )
    names = {tensor.name for tensor in header.tensors}
    return ModelShape(
        name=path.stem,
        hidden=fields.integer(f"{family}.embedding_length"),
        layers=fields.integer(f"{family}.block_count"),
        vocab=_vocab(fields, family),
        dense_width=fields.integer(f"{family}.feed_forward_length"),
        attention=_attention(fields, family),
        experts=_experts(fields, family),
        tied_head="output.weight" not in names,
        formats=_formats(header, path),
    )


def _vocab(fields: Fields, family: str) -> int:
    tokens = fields.raw("tokenizer.ggml.tokens")
    known = len(tokens) if isinstance(tokens, range) else None
    return fields.integer(f"{family}.vocab_size", known)


def _attention(fields: Fields, family: str) -> GroupedAttention | LatentAttention:
    heads = fields.integer(f"{family}.attention.head_count")
    if family != "deepseek2":
        hidden = fields.integer(f"{family}.embedding_length")
        return GroupedAttention(
            heads=heads,
            kv_heads=fields.integer(f"{family}.attention.head_count_kv", heads),
            head_dim=fields.integer(f"{family}.attention.key_length", hidden // heads),
            qk_norm=family.startswith("qwen3"),
        )
    rope = fields.integer(f"{family}.rope.dimension_count")
    key = fields.integer(
        f"{family}.attention.key_length_mla", fields.integer(f"{family}.attention.key_length")
    )
    value = fields.integer(
        f"{family}.attention.value_length_mla", fields.integer(f"{family}.attention.value_length")
    )
    return LatentAttention(
        heads=heads,
        q_rank=fields.integer(f"{family}.attention.q_lora_rank"),
        kv_rank=fields.integer(f"{family}.attention.kv_lora_rank"),
        nope_dim=key - rope,
        rope_dim=rope,
        value_dim=value,
    )


def _experts(fields: Fields, family: str) -> Experts | None:
    if f"{family}.expert_count" not in fields:
        return None
    latent = family == "deepseek2"
    return Experts(
        count=fields.integer(f"{family}.expert_count"),
        active=fields.integer(f"{family}.expert_used_count"),
        width=fields.integer(f"{family}.expert_feed_forward_length"),
        dense_layers=fields.integer(f"{family}.leading_dense_block_count") if latent else 0,
        shared=fields.integer(f"{family}.expert_shared_count") if latent else 0,
    )


def _formats(header: Header, path: Path) -> Formats:
    found = {part: _format(header.tensors, names, path) for part, names in _PARTS.items()}
    known = {part: form for part, form in found.items() if form is not None}
    if "head" not in known and "embedding" in known:
        known["head"] = known["embedding"]
    return Formats.of(known)


def _format(tensors: tuple[TensorInfo, ...], names: tuple[str, ...], path: Path) -> Format | None:
    """The mean over a part's matrices, named after the type that most weights have."""
    weights: dict[int, int] = {}
    for tensor in tensors:
        own = tensor.name.split(".", 2)[-1] if tensor.name.startswith("blk.") else tensor.name
        if own.startswith(names) and "norm" not in own and own.endswith(".weight"):
            weights[tensor.kind] = weights.get(tensor.kind, 0) + tensor.elements
    for kind in weights:
        if kind not in _TYPES:
            raise ModelError(
                f"{path.name} stores weights in a type alula cannot price",
                f"ggml's type number {kind}",
                f"choose a file in {', '.join(name for name, _, _ in _TYPES.values())}",
            )
    if not weights:
        return None
    total = sum(n * _TYPES[kind][1] / _TYPES[kind][2] for kind, n in weights.items())
    return Format(_TYPES[max(weights, key=weights.__getitem__)][0], total / sum(weights.values()))
