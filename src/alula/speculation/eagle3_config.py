"""What a public EAGLE-3 drafter's `config.json` says, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alula.errors import ModelError
from alula.shapes.fields import Fields
from alula.shapes.huggingface import rope_shape
from alula.shapes.rope import RopeShape

_AUX = "eagle_aux_hidden_state_layer_ids"
_FLAGS = ("norm_before_residual", "norm_before_fc", "norm_output")
_FIXED = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "num_hidden_layers": 1}
_FIXED_EAGLE = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}


@dataclass(frozen=True)
class Eagle3Config:
    """An EAGLE-3 drafter of one Llama layer. Nothing here is inherited from the target."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    """The target's vocabulary."""
    draft_vocab_size: int
    rms_eps: float
    max_positions: int
    target_hidden_size: int
    """Width of one of the target's features."""
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    """As the config names it."""
    aux_layers: tuple[int, ...] | None = None
    """Target layers whose input is a feature; None: `default_taps`."""
    norm_before_residual: bool = False
    """The residual is the normed hidden state."""
    norm_before_fc: bool = False
    """One RMSNorm over the concatenated features."""
    fc_norm: bool = False
    """An RMSNorm over each feature (EAGLE-3.1)."""
    norm_output: bool = False
    """The next step is fed the normed hidden state (EAGLE-3.1)."""

    @property
    def features(self) -> int:
        """How many of the target's states make one feature row."""
        return 3 if self.aux_layers is None else len(self.aux_layers)

    @property
    def rope(self) -> RopeShape:
        """The drafter's own rotary embedding."""
        return rope_shape(Fields(_rope_entries(self), "the drafter's config.json"))

    def taps(self, layers: int) -> tuple[int, ...]:
        """Layers of a target of `layers` whose input the drafter wants."""
        return default_taps(layers) if self.aux_layers is None else self.aux_layers


def default_taps(layers: int) -> tuple[int, ...]:
    """The states before layers 2, n / 2 and n - 3 (Li et al., arXiv 2503.01840, and its code)."""
    return 2, layers // 2, layers - 3


def read_config(raw: Mapping[str, Any]) -> Eagle3Config:
    """Read a config in the format of the EAGLE repository, SGLang and vLLM, or of speculators.

    Raises ModelError, naming it, for a setting that alula does not run.
    """
    fields = Fields(raw, "the drafter's config.json")
    layer = fields
    if (kind := raw.get("speculators_model_type")) is not None:
        if kind != "eagle3":
            raise fields.unsupported("speculators_model_type", kind, "supported: eagle3")
        layer = fields.mapping("transformer_layer_config") or fields
    eagle = fields.mapping("eagle_config") or Fields({}, fields.origin)
    _refuse_unsupported(fields, layer, eagle)
    flags = {name: _flag(name, fields, eagle) for name in (*_FLAGS, "fc_norm", "use_aux_norm")}
    if "norm_before_residual" not in fields and layer is not fields:
        flags["norm_before_residual"] = True  # the default of speculators
    fc_norm = flags.pop("use_aux_norm") | flags.pop("fc_norm")
    hidden_size, heads = layer.integer("hidden_size"), layer.integer("num_attention_heads")
    vocab_size = layer.integer("vocab_size")
    return Eagle3Config(
        hidden_size=hidden_size,
        intermediate_size=layer.integer("intermediate_size"),
        heads=heads,
        kv_heads=layer.integer("num_key_value_heads", heads),
        head_dim=layer.integer("head_dim", hidden_size // heads),
        vocab_size=vocab_size,
        draft_vocab_size=fields.integer("draft_vocab_size", vocab_size),
        rms_eps=layer.number("rms_norm_eps", 1e-6),  # as transformers' Llama, also the next line
        max_positions=layer.integer("max_position_embeddings", 2048),
        target_hidden_size=fields.integer("target_hidden_size", hidden_size),
        rope_theta=rope_shape(layer).base,
        rope_scaling=_rope_scaling(layer),
        aux_layers=_aux_layers(fields, eagle),
        fc_norm=fc_norm,
        **flags,
    )


def write_config(config: Eagle3Config, dtype: str) -> dict[str, Any]:
    """The `config.json` that the EAGLE repository, SGLang, vLLM and `read_config` understand.

    `dtype`: of the tensors, as torch names it. Layer ids are written only where they are not the
    default, and then under both meanings: at the top level the layer whose input is taken, nested
    the layer whose output is taken.
    """
    entries: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.max_positions,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        **_FIXED,
        **_rope_entries(config),
    }
    if config.target_hidden_size != config.hidden_size:
        entries["target_hidden_size"] = config.target_hidden_size
    entries |= {name: True for name in (*_FLAGS, "fc_norm") if getattr(config, name)}
    if config.aux_layers is not None:
        entries[_AUX] = list(config.aux_layers)
        entries["eagle_config"] = {_AUX: [layer - 1 for layer in config.aux_layers]}
    return entries


def _refuse_unsupported(fields: Fields, layer: Fields, eagle: Fields) -> None:
    for key in ("kv_lora_rank", "q_lora_rank"):
        if key in layer:
            raise ModelError(
                "alula does not run MLA drafters",
                f"{layer.origin} sets {key} = {layer.raw(key)}: latent attention",
                "choose a drafter with Llama attention (LlamaForCausalLMEagle3)",
            )
    for group, fixed in ((layer, _FIXED), (eagle, _FIXED_EAGLE)):
        for key, only in fixed.items():
            if key in group and group.raw(key) != only:
                raise group.unsupported(key, group.raw(key), f"supported: {only}")
    for key in ("quantization_config", "compression_config"):
        if key in fields:
            raise fields.unsupported(key, "…", "supported: float32, float16, bfloat16")
    if "sliding_window" in layer and layer.flag("use_sliding_window", True):
        raise layer.unsupported("sliding_window", layer.raw("sliding_window"), "supported: none")


def _flag(name: str, fields: Fields, eagle: Fields) -> bool:
    return fields.flag(name, eagle.flag(name, False))


def _aux_layers(fields: Fields, eagle: Fields) -> tuple[int, ...] | None:
    """Layers whose input is taken. The nested ids, SGLang's, name layers by their output."""
    for group, shift in ((fields, 0), (eagle, 1)):
        ids = group.raw(_AUX)
        if ids:
            if not isinstance(ids, list) or not all(type(i) is int and i + shift >= 0 for i in ids):
                raise group.unsupported(_AUX, ids, "supported: a list of layer numbers")
            return tuple(i + shift for i in ids)
    return None


def _rope_scaling(layer: Fields) -> dict[str, Any] | None:
    if rope_shape(layer).scaling is None:
        return None
    group = layer.raw("rope_parameters") or layer.raw("rope_scaling")
    return {key: value for key, value in group.items() if key != "rope_theta"}


def _rope_entries(config: Eagle3Config) -> dict[str, Any]:
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_scaling is None else dict(config.rope_scaling),
        "max_position_embeddings": config.max_positions,
    }
