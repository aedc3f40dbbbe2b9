"""The weight format of each part, from `torch_dtype` and `quantization_config`."""

from __future__ import annotations

import re
from collections.abc import Callable

from alula.cost.formats import BF16, FORMATS, Format, Formats
from alula.errors import ModelError
from alula.shapes.fields import Fields

_DTYPES = {"float32": FORMATS["fp32"], "float16": BF16, "bfloat16": BF16}

# A module of each part, under the names that ignore lists match.
_MODULES = {
    "attention": "model.layers.1.self_attn.o_proj",
    "dense": "model.layers.0.mlp.gate_proj",
    "experts": "model.layers.1.mlp.experts.0.gate_proj",
    "shared": "model.layers.1.mlp.shared_experts.gate_proj",
    "head": "lm_head",
}


def formats(fields: Fields) -> Formats:
    """Formats of all parts. Raises ModelError, naming it, for a quantisation it cannot price."""
    dtype = fields.text("torch_dtype", fields.text("dtype", "bfloat16"))
    if dtype not in _DTYPES:
        raise _unknown(fields, "torch_dtype", dtype, ", ".join(_DTYPES))
    plain = _DTYPES[dtype]
    quantised = fields.mapping("quantization_config")
    if quantised is None:
        return Formats.of({}, plain)
    ignored = _ignored(quantised)
    form = _format(quantised)
    chosen = {part: plain if ignored(module) else form for part, module in _MODULES.items()}
    return Formats.of(chosen, plain)


def _format(quantised: Fields) -> Format:
    method = quantised.text("quant_method")
    match method:
        case "fp8":
            return FORMATS["fp8"]
        case "compressed-tensors":
            return _compressed(quantised)
        case "awq" | "gptq":
            return _grouped(quantised.integer("bits"), quantised.integer("group_size"))
    known = "fp8, compressed-tensors, awq, gptq"
    raise _unknown(quantised, "quant_method", method, known)


def _compressed(quantised: Fields) -> Format:
    groups = quantised.mapping("config_groups")
    first = next(iter(_keys(quantised, "config_groups")), None)
    group = groups.mapping(first) if groups is not None and first is not None else None
    weights = group.mapping("weights") if group is not None else None
    if weights is None:
        raise _unknown(quantised, "config_groups", None, "one group with its weights")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    if kind == "float" and bits == 8:
        return FORMATS["fp8"]
    if kind == "float" and bits == 4:
        return FORMATS["nvfp4"]
    if weights.raw("group_size") is None:
        return FORMATS["int8"] if bits == 8 else Format(f"int{bits}", bits / 8)
    return _grouped(bits, weights.integer("group_size"))


def _grouped(bits: int, group: int) -> Format:
    """Integers with one 16-bit scale for each group."""
    return Format(f"int{bits}-g{group}", bits / 8 + 2 / group)


def _keys(fields: Fields, key: str) -> list[str]:
    value = fields.raw(key)
    return list(value) if isinstance(value, dict) else []


def _ignored(quantised: Fields) -> Callable[[str], bool]:
    """Whether a module keeps its plain weights, by the ignore list: names, or `re:` patterns."""
    method = quantised.text("quant_method")
    if method != "compressed-tensors":
        return lambda module: module == "lm_head"
    entries = quantised.texts("ignore")

    def ignored(module: str) -> bool:
        return any(_matches(entry, module) for entry in entries)

    return ignored


def _matches(entry: str, module: str) -> bool:
    if not entry.startswith("re:"):
        return module == entry or module.endswith("." + entry)
    try:
        return re.match(entry[3:], module) is not None
    except re.error as error:
        raise ModelError(
            "the model's description is malformed",
            f"its ignore list holds {entry!r}: {error}",
            "use the model as its maker published it",
        ) from error


def _unknown(fields: Fields, key: str, value: object, known: str) -> ModelError:
    return ModelError(
        f"alula cannot price {key} = {value!r}",
        f"{fields.origin} has it; known here: {known}",
        "choose another form of the model",
    )
