"""The tokenizer of a folder in Hugging Face layout: tokenizer.json and the settings around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from alula.errors import ModelError
from alula.text.definition import Definition

_FIX = "Download the model again."


def folder_definition(folder: Path) -> Definition:
    """Read the tokenizer of a model folder.

    A text ends at the ids of generation_config.json (config.json where that names none) and at the
    tokenizer's own end token. It begins with a token of its own where the post-processor of
    tokenizer.json says so: like transformers 5 we leave `add_bos_token` to tokenizers without that
    file. Raises ModelError where a file is missing, damaged or unsupported.
    """
    backend = _backend(folder / "tokenizer.json")
    settings = read_json(folder / "tokenizer_config.json")
    bos_id = _special_id(backend, settings, "bos_token")
    eos_id = _special_id(backend, settings, "eos_token")
    prefix = _prefix(backend, bos_id)
    return Definition(
        backend,
        eos_ids=_named_eos_ids(folder) | ({eos_id} if eos_id is not None else set()),
        bos_id=prefix[0] if prefix else bos_id,
        add_bos=bool(prefix),
    )


def read_text(path: Path) -> str | None:
    """The text in a file, None where there is no such file; ModelError where it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read", str(error), _FIX) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no such file; ModelError where damaged."""
    text = read_text(path)
    try:
        content = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged", str(error), _FIX) from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ModelError(f"{path} is damaged", f"it holds a {kind}, not an object", _FIX)
    return content


def special_text(settings: Mapping[str, Any], name: str) -> str | None:
    """The text of a special token in tokenizer_config.json: a string, or an object around it."""
    token = settings.get(name)
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelError(
            "The model has no tokenizer alula can read",
            f"there is no {path}",
            "Download the model again with its tokenizer.json, or convert its tokenizer to one.",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"{path} cannot be read", str(error), _FIX) from error
    if not isinstance(backend.decoder, decoders.ByteLevel):
        raise ModelError(
            f"The tokenizer in {path} is not supported",
            f"its decoder is {type(backend.decoder).__name__}; alula knows byte-level vocabularies "
            "(decoder ByteLevel: Llama 3, Qwen, SmolLM and GPT-2)",
            "Use a model with a byte-level tokenizer.",
        )
    # A tokenizer.json may carry the limits of its training run, which would cut prompts silently.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _prefix(backend: tokenizers.Tokenizer, bos_id: int | None) -> list[int]:
    """The ids that tokenizer.json puts around every text: none, or the one that begins it."""
    around: list[int] = backend.encode("").ids
    if around and (len(around) > 1 or bos_id not in (None, around[0])):
        raise ModelError(
            "The tokenizer is not one of a model that continues text",
            f"tokenizer.json puts the tokens {around} around every text, more than one to begin it",
            "Use a generative model, or correct the post-processor in tokenizer.json.",
        )
    return around


def _special_id(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str
) -> int | None:
    text = special_text(settings, name)
    if text is None:
        return None
    token_id: int | None = backend.token_to_id(text)
    if token_id is None:
        raise ModelError(
            "The model's tokenizer files do not fit each other",
            f"tokenizer_config.json names {text!r} as {name}, tokenizer.json has no such token",
            _FIX,
        )
    return token_id


def _named_eos_ids(folder: Path) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        named = read_json(folder / name).get("eos_token_id")
        ids = named if isinstance(named, list) else [] if named is None else [named]
        if not all(isinstance(token_id, int) for token_id in ids):
            raise ModelError(
                f"{folder / name} cannot be used",
                f"its eos_token_id is {named!r}; a token id or a list of them is expected",
                _FIX,
            )
        if ids:
            return frozenset(ids)
    return frozenset()
