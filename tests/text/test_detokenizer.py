"""Streaming text: whole characters, exact stops, nothing taken back, constant work per token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alula.errors import UsageError
from alula.text.detokenizer import Detokenizer
from alula.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [single[bytes([byte])] for byte in data]


def stream(
    tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = (), chunk: int = 1
) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(tokenizer, stop)
    deltas = [detokenizer.push(ids[at : at + chunk]) for at in range(0, len(ids), chunk)]
    return [*deltas, detokenizer.finish()], detokenizer


def cut(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The definition, word for word: the first to be complete, of several the longest."""
    for end in range(len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


# Few bytes, so that characters, broken characters, U+FFFD itself and stop strings meet often.
WHOLE = [b"a", b"b", b"ab", b"<|im_end|>", *(c.encode() for c in ("é", "🙂", REPLACEMENT))]
BROKEN = [b"\xc3", b"\xf0\x9f", b"\x82", b"\xff", b"\xef\xbf", b"\xed\xa0"]
DATA = st.lists(st.sampled_from([*WHOLE, *BROKEN]), max_size=20).map(b"".join)
STOP = st.lists(st.text(f"abé🙂{REPLACEMENT}", min_size=1, max_size=4), max_size=3)


@given(data=DATA, stop=STOP, chunk=st.integers(1, 8))
@example(data=b"\xe2a", stop=["a"], chunk=1)
@example(data=b"abc\xef\xbf\xbd", stop=["bc\ufffd"], chunk=1)
@example(data=b"xaba", stop=["aab", "b"], chunk=2)
@example(data=b"ab", stop=["b", "ab"], chunk=1)
def test_deltas_are_the_decoded_text_cut_at_the_first_stop(
    tokenizer: Tokenizer, data: bytes, stop: list[str], chunk: int
) -> None:
    ids = ids_of_bytes(tokenizer, data)
    deltas, detokenizer = stream(tokenizer, ids, stop, chunk)
    kept, stopped = cut(tokenizer.decode(ids), stop)
    assert "".join(deltas) == detokenizer.text == kept
    assert detokenizer.stopped == stopped


@given(data=st.data(), stop=STOP, chunk=st.integers(1, 8))
def test_any_ids_in_any_chunks(
    tokenizer: Tokenizer, data: st.DataObject, stop: list[str], chunk: int
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=60))
    text = tokenizer.decode(ids)
    if text:
        start = data.draw(st.integers(0, len(text) - 1))
        stop = [*stop, text[start : start + data.draw(st.integers(1, 6))]]
    deltas, detokenizer = stream(tokenizer, ids, stop, chunk)
    one_by_one = stream(tokenizer, ids, stop)[1]
    assert ("".join(deltas), detokenizer.stopped) == cut(text, stop)
    assert detokenizer.kept_tokens == one_by_one.kept_tokens


@given(data=DATA, stop=STOP)
@example(data=b"\xe2a", stop=["a"])
@example(data=b"a\xef\xbf\xbdb", stop=["b"])
@example(data=b"ab", stop=["ab"])
def test_kept_tokens_are_the_fewest_that_cover_the_kept_text(
    tokenizer: Tokenizer, data: bytes, stop: list[str]
) -> None:
    ids = ids_of_bytes(tokenizer, data)
    _, detokenizer = stream(tokenizer, ids, stop)
    covering = [
        n for n in range(len(ids) + 1) if tokenizer.decode(ids[:n]).startswith(detokenizer.text)
    ]
    expected = len(ids) if detokenizer.stopped is None else covering[0]
    assert detokenizer.kept_tokens == expected


@given(data=DATA, stop=STOP)
def test_held_text_is_no_more_than_a_stop_string_may_claim(
    tokenizer: Tokenizer, data: bytes, stop: list[str]
) -> None:
    """After every push, what is not shown is one unfinished character or begins a stop string."""
    ids = ids_of_bytes(tokenizer, data)
    detokenizer = Detokenizer(tokenizer, stop)
    for n, token_id in enumerate(ids, start=1):
        detokenizer.push([token_id])
        if detokenizer.stopped is not None:
            break
        held = tokenizer.decode(ids[:n])[len(detokenizer.text) :]
        begins = [s[:k] for s in stop for k in range(1, len(s))]
        assert held in ("", REPLACEMENT) or any(
            held in (start, start + REPLACEMENT) for start in begins
        )


def test_a_character_of_several_tokens_comes_whole(tokenizer: Tokenizer) -> None:
    family = "👩\u200d👧"
    deltas, _ = stream(tokenizer, ids_of_bytes(tokenizer, family.encode()))
    assert [delta for delta in deltas if delta] == list(family)


def test_an_unfinished_character_shows_only_at_the_end(tokenizer: Tokenizer) -> None:
    deltas, _ = stream(tokenizer, ids_of_bytes(tokenizer, b"a\xf0\x9f\x99"))
    assert deltas == ["a", "", "", "", REPLACEMENT]


def test_a_stop_string_across_tokens_is_never_shown(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("one"), *ids_of_bytes(tokenizer, b"\n\nUser: hi")]
    deltas, detokenizer = stream(tokenizer, ids, ["\n\nUser:"])
    assert "".join(deltas) == "one"
    assert detokenizer.stopped == "\n\nUser:"
    assert detokenizer.kept_tokens == len(tokenizer.encode("one"))


def test_what_looked_like_a_stop_string_is_shown_once_it_cannot_be(tokenizer: Tokenizer) -> None:
    deltas, _ = stream(tokenizer, ids_of_bytes(tokenizer, b"aabaac"), ["aabaab"])
    assert deltas == ["", "", "", "", "", "aabaac", ""]


def test_held_text_is_shown_when_the_answer_ends(tokenizer: Tokenizer) -> None:
    deltas, detokenizer = stream(tokenizer, ids_of_bytes(tokenizer, b"xEN"), ["END"])
    assert deltas == ["x", "", "", "EN"]
    assert detokenizer.stopped is None and detokenizer.kept_tokens == 3


def test_a_token_that_ends_the_text_and_begins_the_stop_counts(tokenizer: Tokenizer) -> None:
    quick = tokenizer.encode(" quick")
    assert len(quick) == 1
    _, detokenizer = stream(tokenizer, [*quick, *quick], ["ick qu"])
    assert detokenizer.text == " qu" and detokenizer.kept_tokens == 1


def test_of_two_stops_in_one_token_the_first_to_be_complete_cuts(tokenizer: Tokenizer) -> None:
    _, detokenizer = stream(tokenizer, tokenizer.encode(" quick"), ["ck", "ui", "quic"])
    assert (detokenizer.text, detokenizer.stopped) == (" q", "ui")


def test_tokens_after_the_stop_are_passed_over(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ("b",))
    assert detokenizer.push(ids_of_bytes(tokenizer, b"abc")) == "a"
    assert detokenizer.push(ids_of_bytes(tokenizer, b"def")) == detokenizer.finish() == ""
    assert (detokenizer.text, detokenizer.kept_tokens) == ("a", 1)


def test_special_tokens_have_no_text_but_are_kept(tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("<|im_end|>")
    deltas, detokenizer = stream(tokenizer, [*ids_of_bytes(tokenizer, b"a"), *end])
    assert deltas == ["a", "", ""] and detokenizer.kept_tokens == 2


class CountingTokenizer:
    """Counts the tokens that are read, and how much text a detokenizer keeps from them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.reads = 0

    def is_special(self, token_id: int) -> bool:
        return self._tokenizer.is_special(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        self.reads += 1
        return self._tokenizer.token_bytes(token_id)


def test_the_work_per_token_does_not_grow_with_the_answer(tokenizer: Tokenizer) -> None:
    counting = CountingTokenizer(tokenizer)
    detokenizer = Detokenizer(counting, ["aaab"])  # type: ignore[arg-type]
    ids = ids_of_bytes(tokenizer, "aa🙂a<|".encode()) * 500
    windows = []
    for token_id in ids:
        detokenizer.push([token_id])
        windows.append(len(detokenizer._held) + len(detokenizer._marks))
    assert counting.reads == len(ids)
    assert max(windows) <= 12 and windows[-9:] == windows[-18:-9]


@pytest.mark.parametrize("stop", ["END", ("a", ""), [""]])
def test_stop_strings_that_make_no_sense_are_refused(tokenizer: Tokenizer, stop: object) -> None:
    with pytest.raises(UsageError, match="none of them empty"):
        Detokenizer(tokenizer, stop)  # type: ignore[arg-type]


def test_an_unknown_id_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="no token 100000"):
        Detokenizer(tokenizer).push([100_000])


def test_deltas_only_grow_the_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["fox z"])
    seen = [""]
    for token_id in tokenizer.encode("The quick brown fox jumps 🙂 over"):
        delta = detokenizer.push([token_id])
        seen.append(detokenizer.text)
        assert seen[-1] == seen[-2] + delta
    assert all(after.startswith(before) for before, after in pairwise(seen))
