"""The tokenizer that a GGUF header describes.

A header holds the vocabulary and the merges, but of the rules that split a text before merging it
holds only a name. The rules below are those of the tokenizers that the names stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from alula.errors import ModelError
from alula.text.definition import Definition

_FIX = (
    "Convert the model again, or put the model's own tokenizer.json beside it and load the folder."
)
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class _TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type` that are not plain pieces of the vocabulary."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


class _Rules(NamedTuple):
    """What a pre-tokenizer's name stands for."""

    pre_tokenizer: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    ignore_merges: bool = False
    """A word that is a token of its own is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Used where the header does not say it."""


def _split_by_regex(digits: str) -> pre_tokenizers.PreTokenizer:
    """The split in the tokenizer.json of Llama 3 and of Qwen 2, which differ in `digits` alone."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def _gpt2() -> _Rules:
    return _Rules(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def _smollm() -> _Rules:
    # Digits go first: in "\n\n1." the two line ends then stay together before the lone digit.
    digits = pre_tokenizers.Digits(individual_digits=True)
    return _Rules(pre_tokenizers.Sequence([digits, _gpt2().pre_tokenizer]))


def _llama3() -> _Rules:
    return _Rules(_split_by_regex(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)


def _qwen2() -> _Rules:
    return _Rules(_split_by_regex(r"\p{N}"), normalizer=normalizers.NFC())


_RULES = {
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "qwen2": _qwen2,
    "gpt-2": _gpt2,
    "default": _gpt2,
}


def gguf_definition(metadata: Mapping[str, Any]) -> Definition:
    """Read the tokenizer of a GGUF file.

    `metadata` maps the header's keys (`tokenizer.ggml.tokens`, `.merges`, …) to Python values.
    Raises ModelError where the header names a tokenizer alula does not know, or is damaged.
    """
    rules = _rules(metadata)
    tokens = _required(metadata, "tokens")
    if _get(metadata, "add_eos_token"):
        raise ModelError(
            "The GGUF file's model is not one that continues text",
            "its tokenizer ends every text (tokenizer.ggml.add_eos_token is true)",
            "Use a generative model.",
        )
    eos = [_get(metadata, key) for key in _EOS_KEYS]
    bos = _get(metadata, "bos_token_id")
    add_bos = bool(_get(metadata, "add_bos_token", rules.add_bos))
    return Definition(
        _backend(metadata, tokens, rules),
        eos_ids=frozenset(int(token) for token in eos if token is not None),
        bos_id=None if bos is None else int(bos),
        add_bos=add_bos and bos is not None,
    )


def _rules(metadata: Mapping[str, Any]) -> _Rules:
    model = _get(metadata, "model")
    if model != "gpt2":
        raise ModelError(
            f"The GGUF file's tokenizer model {model!r} is not supported",
            "alula reads the byte-level BPE model 'gpt2' from GGUF files",
            "Put the model's own tokenizer.json beside it and load the folder.",
        )
    name = _get(metadata, "pre")
    if name not in _RULES:
        raise ModelError(
            f"The GGUF file's pre-tokenizer {name!r} is not supported",
            f"without its rule for splitting text the token ids would be wrong; alula knows "
            f"{', '.join(_RULES)}",
            "Put the model's own tokenizer.json beside it and load the folder.",
        )
    return _RULES[name]()


def _backend(
    metadata: Mapping[str, Any], tokens: Sequence[str], rules: _Rules
) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(
            "The GGUF file's vocabulary is damaged",
            f"{len(tokens) - len(vocabulary)} of its {len(tokens)} tokens appear twice",
            _FIX,
        )
    backend = tokenizers.Tokenizer(
        _bpe(vocabulary, _required(metadata, "merges"), rules.ignore_merges)
    )
    backend.pre_tokenizer = rules.pre_tokenizer
    if rules.normalizer is not None:
        backend.normalizer = rules.normalizer
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, tokens, _required(metadata, "token_type"))
    return backend


def _bpe(vocabulary: dict[str, int], merges: Sequence[str], ignore_merges: bool) -> models.BPE:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
        if not {left, right, left + right} <= vocabulary.keys():
            raise ModelError(
                "The GGUF file's merges are damaged",
                f"the merge {merge!r} does not join two tokens of the vocabulary into a third",
                _FIX,
            )
    return models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=ignore_merges)


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Mark the tokens that are found in a text before it is split; control tokens are special."""
    if len(types) != len(tokens):
        raise ModelError(
            "The GGUF file's vocabulary is damaged",
            f"it lists {len(tokens)} tokens but {len(types)} token types",
            _FIX,
        )
    special = {_TokenType.UNKNOWN, _TokenType.CONTROL}
    backend.add_tokens(
        [
            AddedToken(token, special=kind in special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in special or kind == _TokenType.USER_DEFINED
        ]
    )


def _get(metadata: Mapping[str, Any], key: str, default: Any = None) -> Any:
    return metadata.get(f"tokenizer.ggml.{key}", default)


def _required(metadata: Mapping[str, Any], key: str) -> list[Any]:
    values = _get(metadata, key)
    if values is None:
        raise ModelError(
            "The GGUF file has no usable tokenizer", f"its header lacks tokenizer.ggml.{key}", _FIX
        )
    return list(values)
