"""A Hugging Face folder gives the ids, the ends and the beginning that its files say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, processors

from alula.errors import ModelError
from alula.text.tokenizer import Tokenizer

Folder = Callable[..., Path]
TEXT = "\n\n1. Grüße <think>hm</think> 🙂<|im_end|>\n"


def begins_with(backend: tokenizers.Tokenizer, template: str) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} $B", special_tokens=[("<|im_start|>", 1)]
    )


@pytest.mark.parametrize("add_bos_token", [None, True, False])
@pytest.mark.parametrize("template", [None, "<|im_start|> $A"])
def test_ids_equal_those_of_transformers(
    folder: Folder,
    backend: tokenizers.Tokenizer,
    template: str | None,
    add_bos_token: bool | None,
) -> None:
    from transformers import PreTrainedTokenizerFast

    if template is not None:
        begins_with(backend, template)
    settings: dict[str, Any] = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    if add_bos_token is not None:
        settings["add_bos_token"] = add_bos_token
    path = folder(tokenizer_config=settings)
    ours, theirs = Tokenizer.from_folder(path), PreTrainedTokenizerFast.from_pretrained(path)
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    ids = theirs.encode(TEXT)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert (ours.bos_id, ours.vocab_size) == (theirs.bos_token_id, len(theirs))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, set()),
        ({"config": {"eos_token_id": 5}}, {5}),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [0, 2]}}, {0, 2}),
        ({"config": {"eos_token_id": 5}, "generation_config": {}}, {5}),
        ({"config": {"eos_token_id": None}}, set()),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, {2}),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}}, {2}),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}, "config": {"eos_token_id": 0}}, {0, 2}),
    ],
)
def test_end_tokens(folder: Folder, files: dict[str, Any], expected: set[int]) -> None:
    assert Tokenizer.from_folder(folder(**files)).eos_ids == expected


def test_limits_left_from_training_do_not_cut_a_prompt(
    folder: Folder, backend: tokenizers.Tokenizer
) -> None:
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer.from_folder(folder())
    assert tokenizer.decode(tokenizer.encode(TEXT), skip_special=False) == TEXT
    assert len(tokenizer.encode("a")) == 1


@pytest.mark.parametrize(
    ("files", "evidence"),
    [
        ({"tokenizer_config": {"bos_token": "<nowhere>"}}, "'<nowhere>' as bos_token"),
        ({"tokenizer_config": ["a"]}, "tokenizer_config.json is damaged.* list"),
        ({"config": {"eos_token_id": "2"}}, "eos_token_id is '2'"),
        ({"config": {"eos_token_id": 9999}}, r"\[9999\] are not in its vocabulary"),
    ],
)
def test_files_that_contradict_are_refused(
    folder: Folder, files: dict[str, Any], evidence: str
) -> None:
    with pytest.raises(ModelError, match=evidence):
        Tokenizer.from_folder(folder(**files))


@pytest.mark.parametrize(
    ("template", "bos"), [("<|im_start|> $A <|im_start|>", None), ("$A <|im_start|>", "<think>")]
)
def test_a_template_that_ends_the_text_is_refused(
    folder: Folder, backend: tokenizers.Tokenizer, template: str, bos: str | None
) -> None:
    begins_with(backend, template)
    with pytest.raises(ModelError, match="around every text"):
        Tokenizer.from_folder(folder(tokenizer_config={"bos_token": bos}))


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no .*tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path, folder: Folder) -> None:
    folder()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is damaged"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_that_is_not_byte_level_is_refused_by_name(tmp_path: Path) -> None:
    other = tokenizers.Tokenizer(models.BPE(vocab={"▁a": 0}, merges=[]))
    other.decoder = decoders.Metaspace()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="decoder is Metaspace"):
        Tokenizer.from_folder(tmp_path)
