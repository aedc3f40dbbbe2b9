"""A GGUF header gives the ids of the tokenizer it was made from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers

from alula.errors import ModelError
from alula.text.gguf_tokenizer import gguf_definition
from alula.text.tokenizer import Tokenizer

Header = Callable[..., dict[str, Any]]

TRICKY = [
    "\n\n1. one\n\n12. two",
    "I'LL don't WE'VE it's",
    "1234567 ½Ⅷ٣٤ 3.14",
    "  two  spaces\t\n \r\n\r\n x \n",
    "e\u0301 Grüße 你好 🙂👩‍👩‍👧 \u00a0\u3000.",
    "<|im_start|>user\nHi<|im_end|>\n<think>",
    "(x)!! --\n\n$%^ _a_b",
    "<think>\u0338 is not normalised into another character",
]
texts = st.one_of(
    st.sampled_from(TRICKY), st.text(), st.text("a1'sST .\n\r\t é\u0301½!<|", max_size=30)
)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text)]


def test_smollm_splits_digits_before_the_rest(header: Header) -> None:
    assert pieces(Tokenizer.from_gguf(header("smollm")), "\n\n1.") == ["\n\n", "1", "."]
    assert pieces(Tokenizer.from_gguf(header("gpt-2")), "\n\n1.") == ["\n", "\n", "1", "."]


@given(text=texts)
def test_smollm_equals_the_tokenizer_json(
    header_smollm: Tokenizer, original: tokenizers.Tokenizer, text: str
) -> None:
    assert header_smollm.encode(text) == original.encode(text).ids


@pytest.fixture(scope="module")
def header_smollm(header: Header) -> Tokenizer:
    return Tokenizer.from_gguf(header("smollm"))


@pytest.fixture(scope="module")
def original(bpe: dict[str, Any]) -> tokenizers.Tokenizer:
    """SmolLM2's tokenizer.json, written out: digits one by one, then GPT-2's split."""
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    gpt2 = Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    split = pre_tokenizers.Split(gpt2, "isolated")
    return assemble(bpe, [digits, split], special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def assemble(
    bpe: dict[str, Any],
    splits: list[pre_tokenizers.PreTokenizer],
    special: list[str],
    **options: Any,
) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(bpe["vocab"], bpe["merges"], **options))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_only])
    made.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in special])
    made.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    return made


@given(text=texts)
@example(text=TRICKY[-1])
def test_qwen2_equals_transformers(qwen2: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = qwen2
    assert ours.encode(text) == theirs.encode(text)


@pytest.fixture(scope="module")
def qwen2(header: Header, bpe: dict[str, Any]) -> tuple[Tokenizer, Any]:
    from transformers import Qwen2Tokenizer

    theirs = Qwen2Tokenizer(
        vocab=bpe["vocab"],
        merges=bpe["merges"],
        extra_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    theirs.add_tokens([tokenizers.AddedToken("<think>", normalized=False, special=False)])
    return Tokenizer.from_gguf(header("qwen2")), theirs


@given(text=texts)
def test_llama3_splits_as_transformers_converts_it(
    llama3: tuple[Tokenizer, tokenizers.Tokenizer], text: str
) -> None:
    ours, theirs = llama3
    assert ours.encode(text, add_bos=False) == theirs.encode(text).ids


@pytest.fixture(scope="module")
def llama3(header: Header, bpe: dict[str, Any]) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    pattern = inspect.signature(TikTokenConverter).parameters["pattern"].default
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    theirs = assemble(bpe, [split], special, ignore_merges=True)
    return Tokenizer.from_gguf(header("llama-bpe")), theirs


@given(text=texts)
def test_gpt2_equals_transformers(gpt2: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = gpt2
    assert ours.encode(text) == theirs.encode(text)


@pytest.fixture(scope="module")
def gpt2(header: Header, bpe: dict[str, Any]) -> tuple[Tokenizer, Any]:
    from transformers import GPT2Tokenizer

    theirs = GPT2Tokenizer(
        vocab=bpe["vocab"],
        merges=bpe["merges"],
        extra_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    theirs.add_tokens([tokenizers.AddedToken("<think>", normalized=False, special=False)])
    return Tokenizer.from_gguf(header("gpt-2")), theirs


def test_llama3_takes_a_known_word_whole(header: Header) -> None:
    """`ignore_merges`: a token that no merge reaches is found all the same."""
    full = header()
    tokens = [*full["tokenizer.ggml.tokens"], "zebrafish"]
    types = [*full["tokenizer.ggml.token_type"], 1]
    changes = {"tokens": tokens, "token_type": types, "add_bos_token": False}
    llama = Tokenizer.from_gguf(header("llama-bpe", **changes))
    qwen = Tokenizer.from_gguf(header("qwen2", **changes))
    assert llama.encode("zebrafish") == [len(tokens) - 1]
    assert len(qwen.encode("zebrafish")) > 1


@pytest.mark.parametrize(
    ("pre", "changes", "expected"),
    [
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
        ("llama-bpe", {"bos_token_id": None}, False),
        ("qwen2", {}, False),
        ("smollm", {"add_bos_token": True}, True),
    ],
)
def test_who_begins_with_bos(header: Header, pre: str, changes: Any, expected: bool) -> None:
    assert gguf_definition(header(pre, **changes)).add_bos is expected


def test_every_end_token_of_the_header_counts(header: Header) -> None:
    made = gguf_definition(header(eot_token_id=0, eom_token_id=5))
    assert made.eos_ids == {0, 2, 5}
    assert gguf_definition(header(eos_token_id=None)).eos_ids == frozenset()


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"model": "llama"}, "'llama'.*'gpt2'"),
        ({"model": None}, "None"),
        ({"pre": "tekken"}, "'tekken'.*smollm, llama-bpe"),
        ({"pre": None}, "pre-tokenizer None"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"token_type": None}, "tokenizer.ggml.token_type"),
        ({"token_type": [1, 1]}, "2 token types"),
        ({"merges": ["a"]}, "merge 'a'"),
        ({"merges": ["☃ ☃"]}, "merge '☃ ☃'"),
        ({"tokens": ["a", "a"]}, "appear twice"),
        ({"add_eos_token": True}, "add_eos_token"),
    ],
)
def test_what_alula_does_not_know_is_refused_by_name(
    header: Header, changes: dict[str, Any], evidence: str
) -> None:
    with pytest.raises(ModelError, match=evidence):
        gguf_definition(header() | {f"tokenizer.ggml.{k}": v for k, v in changes.items()})


def test_the_way_out_of_an_unknown_tokenizer_is_told(header: Header) -> None:
    with pytest.raises(ModelError) as refused:
        gguf_definition(header("tekken"))
    assert "tokenizer.json" in refused.value.fix


@pytest.mark.slow
def test_smollm2_itself() -> None:
    """Ids written down from the original tokenizer's vocabulary; a whole text comes back."""
    from gguf import GGUFReader

    from alula.models.source import resolve

    fields = GGUFReader(resolve("smollm2").path).fields
    metadata = {name: field.contents() for name, field in fields.items()}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.eos_ids == {2} and not tokenizer.add_bos
    assert tokenizer.vocab_size == 49152
    assert pieces(tokenizer, "Hi\n\n12. x<|im_end|>") == [
        *("Hi", "\n\n", "1", "2", ".", " x", "<|im_end|>")
    ]
    text = "".join(TRICKY) * 50
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
