"""Token ids to text as they come: whole characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from alula.errors import UsageError
from alula.text.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class _Mark(NamedTuple):
    """How far the text reaches after a number of tokens."""

    tokens: int
    characters: int
    unfinished: bool
    """Bytes of one more character are there; on their own they would show as U+FFFD."""


class Detokenizer:
    """Streams one answer.

    The deltas of `push` and `finish` together are `tokenizer.decode(ids)`, cut where the first stop
    string to be complete begins (of several complete at the same character, the longest). Where
    the cut falls depends on the ids alone, not on how they are grouped into pushes. A delta is
    never taken back: bytes of an unfinished character, and a tail that may yet become a stop
    string, are held. The work per token does not grow with the answer.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or "" in stop:
            raise UsageError(
                f"The stop strings {stop!r} cannot be used",
                "they are a sequence of strings, none of them empty",
                "Leave the empty string out, or pass one string as a tuple of one.",
            )
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._unfinished = b""
        self._shown: list[str] = []
        self._shown_characters = 0
        self._held = ""
        self._pushed = 0
        self._kept: int | None = None
        self._marks = deque([_Mark(tokens=0, characters=0, unfinished=False)])
        self.stopped: str | None = None
        """The stop string that ended the answer."""

    @property
    def text(self) -> str:
        """All text shown so far: the deltas, joined."""
        return "".join(self._shown)

    @property
    def holds_text(self) -> bool:
        """Whether text is held that may yet become a stop string."""
        return bool(self._held)

    @property
    def kept_tokens(self) -> int:
        """How many of the pushed tokens belong to the answer.

        All of them until a stop string is found; then the smallest n for which
        `tokenizer.decode(ids[:n])` begins with the kept text. A token that holds the end of the
        kept text and the beginning of the stop string counts.
        """
        return self._pushed if self._kept is None else self._kept

    def push(self, ids: Iterable[int]) -> str:
        """Add tokens; returns the new text that is safe to show.

        Tokens that follow a stop string are passed over. Raises UsageError for an id outside the
        vocabulary.
        """
        if self._stop:
            return "".join(self._push_one(token_id) for token_id in ids)
        ids, tokenizer = list(ids), self._tokenizer
        data = [tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i)]
        self._pushed += len(ids)
        return self._append(self._decode(b"".join(data)))

    def finish(self) -> str:
        """End the answer; returns what was held, an unfinished character as U+FFFD."""
        if self.stopped is not None:
            return ""
        if not self._stop:
            return self._append(self._decode(b"", final=True))
        shown = self._advance(self._decode(b"", final=True))
        return shown if self.stopped is not None else shown + self._show(len(self._held))

    def _append(self, text: str) -> str:
        """Show text that no stop string can claim, there being none."""
        if text:
            self._shown.append(text)
        return text

    def _push_one(self, token_id: int) -> str:
        if self.stopped is not None:
            return ""
        self._pushed += 1
        if self._tokenizer.is_special(token_id):
            return ""
        new = self._decode(self._tokenizer.token_bytes(token_id))
        self._mark(len(new))
        return self._advance(new)

    def _decode(self, data: bytes, final: bool = False) -> str:
        """Whole characters of the bytes so far; those of one that is unfinished wait for more."""
        data = self._unfinished + data
        text, used, *_ = codecs.utf_8_decode(data, "replace", False)
        rest = data[used:].decode(errors="replace")
        # Python also waits after the start of a surrogate, which is no character and never will be.
        ended = final or len(rest) > 1
        self._unfinished = b"" if ended else data[used:]
        return text + rest if ended else text

    def _advance(self, new: str) -> str:
        """Join new text to what is held, and show all of it that no stop string can claim."""
        if not new:
            return ""
        self._held += new
        found = [
            (at + len(stop), at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0
        ]
        if not found:
            return self._show(len(self._held) - self._claimed())
        _, start, self.stopped = min(found)
        self._kept = self._tokens_covering(self._held[:start])
        shown = self._show(start)
        self._held = ""
        return shown

    def _claimed(self) -> int:
        """Length of the longest tail of the held text that begins a stop string."""
        return max((_overlap(self._held, stop) for stop in self._stop), default=0)

    def _show(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        if shown:
            self._shown.append(shown)
            self._shown_characters += len(shown)
        # No cut can fall before what is shown, so earlier marks are of no more use.
        while self._marks[0].characters < self._shown_characters - 1:
            self._marks.popleft()
        return shown

    def _mark(self, characters: int) -> None:
        last = self._marks[-1]
        unfinished = bool(self._unfinished)
        if characters or unfinished != last.unfinished:
            self._marks.append(_Mark(self._pushed, last.characters + characters, unfinished))

    def _tokens_covering(self, kept: str) -> int:
        """The smallest number of tokens whose text begins with the shown text and `kept`."""
        wanted = self._shown_characters + len(kept)
        end = (self._shown[-1] if self._shown else "") + kept
        # An unfinished character is shown as U+FFFD, which may be just what the kept text ends in.
        spare = int(end.endswith(_REPLACEMENT))
        return next(
            mark.tokens
            for mark in self._marks
            if mark.characters + (spare if mark.unfinished else 0) >= wanted
        )


def _overlap(text: str, stop: str) -> int:
    """Length of the longest tail of `text` that begins `stop` without completing it."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
