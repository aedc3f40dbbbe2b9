"""The weight format of each part, from `torch_dtype` and `quantization_config`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from alula.cost.formats import BF16, FORMATS, Format, Formats
from alula.errors import ModelError
from alula.shapes.fields import Fields

_FormatOf = Callable[[str], Format | None]
_BITS = (2, 3, 4, 5, 6, 8)
_DTYPES = {"float32": FORMATS["fp32"], "float16": BF16, "bfloat16": BF16}

# A module of each part, under the names that targets and ignore lists match.
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
    form_of = _quantisation(quantised)
    chosen = {part: form_of(module) or plain for part, module in _MODULES.items()}
    if all(form == plain for form in chosen.values()):
        raise ModelError(
            "the model's quantisation reaches none of its parts",
            f"{quantised.origin} names no target among {', '.join(_MODULES.values())}",
            "use the model as its maker published it",
        )
    return replace(Formats.of(chosen, plain), kv_bytes=_kv_bytes(quantised))


def _quantisation(quantised: Fields) -> _FormatOf:
    """The format of a module by its name; None for one that keeps its plain weights."""
    method = quantised.text("quant_method")
    match method:
        case "fp8":
            return _all_but(quantised, FORMATS["fp8"])
        case "awq" | "gptq":
            return _all_but(quantised, _integers(quantised, "bits"))
        case "compressed-tensors":
            return _by_group(quantised)
    known = "fp8, compressed-tensors, awq, gptq"
    raise _unknown(quantised, "quant_method", method, known)


def _all_but(quantised: Fields, form: Format) -> _FormatOf:
    """One format for all but the head and the modules that are listed, by a part of their name."""
    listed = (
        "lm_head",
        *quantised.texts("modules_to_not_convert"),
        *quantised.texts("ignored_layers"),
    )

    def form_of(module: str) -> Format | None:
        kept = any(f".{entry}." in f".{module}." for entry in listed)
        return None if kept else form

    return form_of


def _by_group(quantised: Fields) -> _FormatOf:
    """The format of the first group whose targets match, for what is on no ignore list."""
    groups = quantised.mapping("config_groups")
    if groups is None:
        raise _unknown(quantised, "config_groups", None, "groups with their weights")
    names = quantised.raw("config_groups")
    found = [_group(quantised, groups.mapping(name)) for name in names]
    ignored = quantised.texts("ignore")

    def form_of(module: str) -> Format | None:
        if any(_matches(entry, module) for entry in ignored):
            return None
        fitting = (form for targets, form in found if any(_matches(t, module) for t in targets))
        return next(fitting, None)

    return form_of


def _group(quantised: Fields, group: Fields | None) -> tuple[tuple[str, ...], Format]:
    weights = group.mapping("weights") if group is not None else None
    if group is None or weights is None:
        raise _unknown(quantised, "config_groups", None, "groups with their weights")
    kind = weights.text("type", "int")
    targets = group.texts("targets") or ("Linear",)
    if kind == "int":
        return targets, _integers(weights, "num_bits")
    match kind, weights.integer("num_bits"), weights.raw("group_size"):
        case "float", 8, _:
            return targets, FORMATS["fp8"]
        case "float", 4, None | 16:
            return targets, FORMATS["nvfp4"]
        case "float", 4, 32:
            return targets, Format("mxfp4", 0.5 + 1 / 32)
    raise _unknown(weights, "type", kind, "int, or float of 8 bits or 4 in groups of 16 or 32")


def _integers(weights: Fields, key: str) -> Format:
    """Integers with one 16-bit scale for each group, or for each row of the matrix."""
    bits = weights.integer(key)
    if bits not in _BITS:
        raise _unknown(weights, key, bits, ", ".join(map(str, _BITS)))
    if weights.raw("group_size") in (None, -1):
        return FORMATS["int8"] if bits == 8 else Format(f"int{bits}", bits / 8)
    group = weights.integer("group_size")
    return Format(f"int{bits}-g{group}", bits / 8 + 2 / group)


def _kv_bytes(quantised: Fields) -> float:
    """Of one element of keys and values."""
    scheme = quantised.mapping("kv_cache_scheme")
    if scheme is None:
        return Formats().kv_bytes
    bits = scheme.integer("num_bits")
    if bits not in (4, 8, 16):
        raise _unknown(scheme, "num_bits", bits, "4, 8 or 16")
    return bits / 8


def _matches(entry: str, module: str) -> bool:
    if not entry.startswith("re:"):
        return entry == "Linear" or module == entry or module.endswith("." + entry)
    try:
        return re.match(entry[3:], module) is not None
    except re.error as error:
        raise ModelError(
            "the model's description is malformed",
            f"its quantisation names {entry!r}: {error}",
            "use the model as its maker published it",
        ) from error


def _unknown(fields: Fields, key: str, value: object, known: str) -> ModelError:
    return ModelError(
        f"alula cannot price {key} = {value!r}",
        f"{fields.origin} has it; known here: {known}",
        "choose another form of the model",
    )
