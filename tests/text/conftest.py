"""A small byte-level vocabulary, as a GGUF header tells it and as tokenizer.json does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from alula.text.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, isn't it? We'll see, I'd say: they've WON'T.",
    "for i in range(10):\n    print(i, 2024)\n\n\n1. one\n\n12. two\r\n\r\n  three   four\t\tfive",
    "Grüße aus Köln, déjà vu, Привет мир, 你好世界,"
    " こんにちは 🙂👩‍👩‍👧 ½ ² Ⅷ ٣٤ e\u0301 \u00a0\u3000 x",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>"]


@pytest.fixture(scope="session")
def bpe() -> dict[str, Any]:
    """Vocabulary and merges with all 256 byte symbols; the special tokens have the first ids."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        show_progress=False,
        special_tokens=[*SPECIAL, *USER_DEFINED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained.train_from_iterator(CORPUS * 3, trainer)
    model: dict[str, Any] = json.loads(trained.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


@pytest.fixture(scope="session")
def header(bpe: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Make a GGUF header; keyword arguments replace entries, None removes one."""
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    kinds = dict.fromkeys(SPECIAL, 3) | dict.fromkeys(USER_DEFINED, 4)

    def make(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
        entries = {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "merges": [" ".join(pair) for pair in bpe["merges"]],
            "token_type": [kinds.get(token, 1) for token in tokens],
            "bos_token_id": 1,
            "eos_token_id": 2,
        } | changes
        return {f"tokenizer.ggml.{k}": v for k, v in entries.items() if v is not None}

    return make


@pytest.fixture(scope="session")
def tokenizer(header: Callable[..., dict[str, Any]]) -> Tokenizer:
    return Tokenizer.from_gguf(header())


@pytest.fixture
def backend(bpe: dict[str, Any]) -> tokenizers.Tokenizer:
    """What a tokenizer.json holds: split on digits, as SmolLM2 does, no template around a text."""
    made = tokenizers.Tokenizer(models.BPE(vocab=bpe["vocab"], merges=bpe["merges"]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in SPECIAL])
    made.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in USER_DEFINED])
    return made


@pytest.fixture
def folder(tmp_path: Path, backend: tokenizers.Tokenizer) -> Callable[..., Path]:
    """Write a model folder: tokenizer.json, and each keyword argument as NAME.json."""

    def write(**files: Any) -> Path:
        backend.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write
