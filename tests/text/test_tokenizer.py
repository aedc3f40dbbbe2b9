"""Text → ids → text loses nothing, and what cannot be expressed is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.errors import ModelError, UsageError
from alula.text.tokenizer import Tokenizer

Header = Callable[..., dict[str, Any]]


@given(text=st.text())
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(data=st.data())
def test_decode_equals_the_library_on_any_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    skip = data.draw(st.booleans())
    assert tokenizer.decode(ids, skip_special=skip) == tokenizer._backend.decode(ids, skip)


def test_special_tokens_are_read_or_taken_as_characters(tokenizer: Tokenizer) -> None:
    text = "hello<|im_end|>"
    read, literal = tokenizer.encode(text), tokenizer.encode(text, special=False)
    assert read[-1] == 2 and 2 not in literal
    assert tokenizer.decode(read) == "hello"
    assert tokenizer.decode(read, skip_special=False) == tokenizer.decode(literal) == text


def test_reading_special_tokens_as_characters_leaves_no_trace(tokenizer: Tokenizer) -> None:
    before = tokenizer.encode("<|im_end|>")
    tokenizer.encode("<|im_end|>", special=False)
    assert tokenizer.encode("<|im_end|>") == before == [2]


def test_a_user_defined_token_is_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<think>") == [3]
    assert tokenizer.decode([3]) == "<think>"
    assert not tokenizer.is_special(3)


def test_bos_is_added_once(header: Header) -> None:
    tokenizer = Tokenizer.from_gguf(header(add_bos_token=True))
    plain = tokenizer.encode("hello", add_bos=False)
    assert tokenizer.add_bos
    assert tokenizer.encode("hello") == [1, *plain]
    assert tokenizer.encode("<|im_start|>hello") == [1, *plain]
    assert tokenizer.encode("") == [1]


def test_bos_stays_away_unless_asked_for(tokenizer: Tokenizer) -> None:
    assert not tokenizer.add_bos and tokenizer.bos_id == 1
    assert tokenizer.encode("") == []
    assert tokenizer.encode("", add_bos=True) == [1]


def without(header: Header, *symbols: str) -> dict[str, Any]:
    """A header whose vocabulary lacks some byte symbols and all that is made of them."""
    full = header()
    tokens = [t for t in full["tokenizer.ggml.tokens"] if not set(symbols) & set(t)]
    merges = [m for m in full["tokenizer.ggml.merges"] if not set(symbols) & set(m)]
    types = full["tokenizer.ggml.token_type"][: len(tokens)]
    return header(tokens=tokens, merges=merges, token_type=types)


def test_a_character_without_tokens_is_refused_not_dropped(header: Header) -> None:
    tokenizer = Tokenizer.from_gguf(without(header, "Ą"))  # the symbol of byte 04
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
    with pytest.raises(UsageError, match=r"U\+0004.* bytes 04"):
        tokenizer.encode("a\x04b")


def test_a_character_with_one_byte_missing_is_named(header: Header) -> None:
    tokenizer = Tokenizer.from_gguf(without(header, "Ķ"))  # the symbol of byte 94
    with pytest.raises(UsageError, match=r"'—' \(U\+2014\).* bytes e2 80 94"):
        tokenizer.encode("all - but — this")


def test_normalisation_comes_before_the_search_for_missing_bytes(header: Header) -> None:
    lacking = without(header, "Ì")  # byte CC, which e + U+0301 holds and é does not
    with pytest.raises(UsageError, match=r"U\+0301"):
        Tokenizer.from_gguf(lacking).encode("e\u0301")
    qwen = Tokenizer.from_gguf(lacking | {"tokenizer.ggml.pre": "qwen2"})
    assert qwen.decode(qwen.encode("e\u0301")) == "\u00e9"


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"character 1 is the lone surrogate U\+D800"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize("token_id", [-1, 100_000, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(UsageError, match=f"no token {token_id}"):
        tokenizer.decode([5, token_id])


def test_token_text_shows_parts_and_special_tokens(tokenizer: Tokenizer) -> None:
    part = tokenizer.encode("\U0010ffff")[0]
    assert tokenizer.token_text(part) == "\ufffd"
    assert tokenizer.token_bytes(part) == b"\xf4"
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_an_end_token_outside_the_vocabulary_is_refused(header: Header) -> None:
    with pytest.raises(ModelError, match="100000"):
        Tokenizer.from_gguf(header(eos_token_id=100_000))
