"""One conversation being written: what is asked of the model next, and what becomes of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from alula.text.tokenizer import Tokenizer
from alula.training.duplicates import cut_loop
from alula.training.turns import Message, Turns
from alula.training.writer import Ask

LEAST_QUERY = 6
_LEAST_ANSWER = 4
_SIGNED_ANSWER = 64
_QUERY_MIN_P = 0.05


class Speaker(NamedTuple):
    """The model as a writer of both sides, and how much it may say."""

    tokenizer: Tokenizer
    turns: Turns | None
    """None for a model without a chat template, which only goes on with what it is given."""
    max_length: int
    query_tokens: int
    answer_tokens: int


@dataclass
class Dialogue:
    """A conversation of up to `turns` turns.

    `begin` says what to write first; every `take` hears what was written and says what comes next.
    Everything random comes from `dice`, so that the order in which others finish plays no part.
    """

    speaker: Speaker
    source: str
    temperature: float
    turns: int
    dice: random.Random
    messages: list[Message] = field(default_factory=list)
    """What was said so far, given by others at first where the model does not begin itself."""
    scene: list[Message] = field(default_factory=list)
    """What steers the first query; not part of the conversation."""
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    first: list[Message] = field(default_factory=list)
    """What the first answer replies to."""
    signed: list[int] = field(default_factory=list)
    """The first query and the beginning of its answer, by which near duplicates are known."""
    dropped: str | None = None
    """Why nothing is kept."""
    _listening: bool = False
    _prompt: list[int] | None = None

    def begin(self) -> Ask | None:
        """What to write first; None where nothing can be."""
        return self._answer() if self.messages else self._query()

    def take(self, written: list[int]) -> Ask | None:
        """Hear what was asked for; what to write next, None at the end of the conversation."""
        return self._hear_query(written) if self._listening else self._hear_answer(written)

    def _query(self) -> Ask | None:
        """Let the model speak for the user."""
        assert self.speaker.turns is not None
        self._listening = True
        ask = Ask(
            self.speaker.turns.before_user([*self.scene, *self.messages]),
            temperature=1.0,
            seed=self.dice.getrandbits(64),
            max_tokens=self.speaker.query_tokens,
            min_p=_QUERY_MIN_P,
            stop_ids=frozenset({self.speaker.turns.end_id}),
        )
        return self._fitting(ask)

    def _hear_query(self, written: list[int]) -> Ask | None:
        assert self.speaker.turns is not None
        ends = {self.speaker.turns.end_id} | self.speaker.tokenizer.eos_ids
        if not written or written[-1] not in ends:
            return self._end("query without an end")
        if len(written) - 1 < LEAST_QUERY:
            return self._end("query too short")
        text = self.speaker.tokenizer.decode(written[:-1]).strip()
        self.messages.append({"role": "user", "content": text})
        return self._answer()

    def _answer(self) -> Ask | None:
        self._listening = False
        self.first = self.first or list(self.messages)
        seed = self.dice.getrandbits(64)
        self._prompt = self._so_far()
        if self._prompt is None:
            return self._end("template rewrites turns")
        return self._fitting(Ask(self._prompt, self.temperature, seed, self.speaker.answer_tokens))

    def _so_far(self) -> list[int] | None:
        """Ids up to the answer; the conversation stays token by token as it was."""
        turns = self.speaker.turns
        if turns is None:
            return self.speaker.tokenizer.encode(self.messages[0]["content"])
        if not self.tokens:
            return turns.before_answer(self.messages)
        more = turns.after_answer(self.messages, self.messages[-2]["content"])
        if more is None:
            return None
        ended = self.tokens[-1] == more[0]  # the answer's own end
        return self.tokens + (more[1:] if ended else more)

    def _hear_answer(self, written: list[int]) -> Ask | None:
        assert self._prompt is not None
        tokenizer, kept = self.speaker.tokenizer, cut_loop(written)
        if len(kept) < _LEAST_ANSWER:
            return self._end("repetition")
        if not self.tokens:
            query = tokenizer.encode(self.messages[-1]["content"])
            self.signed = [*query, *kept[:_SIGNED_ANSWER]]
        known = len(self.tokens)
        self.mask += [False] * (len(self._prompt) - known) + [True] * len(kept)
        self.tokens = self._prompt + kept
        ended = kept[-1] in tokenizer.eos_ids
        text = tokenizer.decode(kept[:-1] if ended else kept)
        self.messages.append({"role": "assistant", "content": text})
        self.scene = []
        self.turns -= 1
        return self._query() if ended and self.turns > 0 else None

    def _fitting(self, ask: Ask) -> Ask | None:
        """The ask where there is room for more than a few tokens."""
        if len(ask.prompt) + 2 * LEAST_QUERY <= self.speaker.max_length:
            return ask
        return self._end("too long")

    def _end(self, cause: str) -> Ask | None:
        """No more turns; the answers there are stay."""
        if not self.tokens:
            self.dropped = cause
        return None
