"""From the engine's pieces to the objects of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from alula import __version__
from alula.server.messages import Finish, Logprob, Piece
from alula.text.tokenizer import Tokenizer
from alula.text.tools import Call, ToolForm, ToolReader

JsonObject = dict[str, Any]

_LOGPROB_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass
class Usage:
    """Tokens of one HTTP request, summed over its samples."""

    prompt_tokens: int
    told: int = 0
    """Tokens of the pieces so far."""
    accepted: int = 0
    """Drafted tokens in the answers."""
    finishes: dict[int, Finish] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Count a piece, and a sample's end."""
        self.told += len(piece.token_ids)
        self.accepted += sum(piece.drafted)
        if piece.finish is not None:
            self.finishes[piece.index] = piece.finish

    def so_far(self) -> JsonObject:
        """What can be said before the end."""
        total = self.prompt_tokens + self.told
        counts = {"completion_tokens": self.told, "total_tokens": total}
        return {"prompt_tokens": self.prompt_tokens, **counts}

    def as_json(self, samples: int) -> JsonObject:
        """OpenAI's usage object; cached tokens are those that a prompt's first sample found."""
        ends = self.finishes
        generated = sum(end.tokens for end in ends.values())
        rejected = sum(sum(end.drafted) - sum(end.accepted) for end in ends.values())
        cached = sum(end.prefix_tokens for index, end in ends.items() if index % samples == 0)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": rejected,
                "reasoning_tokens": 0,
            },
        }

    def speculation(self) -> JsonObject:
        """What alula adds to OpenAI's objects: the seed in use and how speculation fared."""
        ends = self.finishes.values()
        rounds = sum(end.rounds for end in ends)
        emitted = sum(end.emitted for end in ends)
        return {
            "seed": next(iter(ends)).seed if ends else None,
            "rounds": rounds,
            "tokens_per_round": emitted / rounds if rounds else None,
        }


class Choice(Protocol):
    """One sample as it grows."""

    def chunks(self, piece: Piece) -> list[JsonObject]:
        """What to stream for a piece."""
        ...

    def whole(self) -> JsonObject:
        """The finished choice."""
        ...


class ChatChoice:
    """One answer of a chat: its text, its tool calls, its end."""

    def __init__(self, index: int, tokenizer: Tokenizer, tools: ToolForm | None) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._reader = ToolReader(tools) if tools else None
        self._text = ""
        self._calls: list[JsonObject] = []
        self._logprobs: list[JsonObject] | None = None
        self._begun = False
        self._reason: str | None = None

    def chunks(self, piece: Piece) -> list[JsonObject]:
        """The first one names the role; the last one the reason of the end."""
        deltas = [self._delta(part) for part in self._parts(piece)]
        if not self._begun:
            deltas[:0] = [{"role": "assistant", "content": ""}]
            self._begun = True
        logprobs = self._logprobs_of(piece)
        if logprobs is not None and not deltas:
            deltas = [{"content": ""}]
        found = [self._chunk(delta) for delta in deltas]
        if logprobs is not None:
            found[-1]["logprobs"] = logprobs
        if piece.finish is not None:
            self._end(piece.finish)
            found.append(self._chunk({}, self._reason))
        return found

    def _end(self, finish: Finish) -> None:
        called = bool(self._calls) and finish.reason == "stop"
        self._reason = "tool_calls" if called else finish.reason

    def _parts(self, piece: Piece) -> list[str | Call]:
        if self._reader is None:
            return [piece.text] if piece.text else []
        found = self._reader.push(piece.text)
        return found + self._reader.finish() if piece.finish is not None else found

    def _delta(self, part: str | Call) -> JsonObject:
        if isinstance(part, str):
            self._text += part
            return {"content": part}
        call = {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": part.name, "arguments": part.arguments},
        }
        self._calls.append(call)
        return {"tool_calls": [{"index": len(self._calls) - 1, **call}]}

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> JsonObject:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": reason}

    def _logprobs_of(self, piece: Piece) -> JsonObject | None:
        if piece.logprobs is None:
            return None
        new = [self._token(part) for part in piece.logprobs]
        self._logprobs = (self._logprobs or []) + new
        return {"content": new, "refusal": None} if new else None

    def _token(self, part: Logprob) -> JsonObject:
        top = [token_json(self._tokenizer, *pair) for pair in part.top]
        return token_json(self._tokenizer, part.token_id, part.logprob) | {"top_logprobs": top}

    def whole(self) -> JsonObject:
        """OpenAI's choice with its message."""
        message: JsonObject = {
            "role": "assistant",
            "content": self._text if self._text or not self._calls else None,
            "refusal": None,
        }
        if self._calls:
            message["tool_calls"] = self._calls
        logprobs = None
        if self._logprobs is not None:
            logprobs = {"content": self._logprobs, "refusal": None}
        return {
            "index": self._index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._reason,
        }


class TextChoice:
    """One continuation of a prompt."""

    def __init__(self, index: int, tokenizer: Tokenizer) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._text = ""
        self._logprobs: JsonObject | None = None
        self._offset = 0
        self._reason: str | None = None

    def chunks(self, piece: Piece) -> list[JsonObject]:
        """At most one, in the form of a whole choice."""
        self._text += piece.text
        logprobs = self._logprobs_of(piece)
        if piece.finish is not None:
            self._reason = piece.finish.reason
        if not piece.text and logprobs is None and piece.finish is None:
            return []
        return [self._choice(piece.text, logprobs)]

    def _choice(self, text: str, logprobs: JsonObject | None) -> JsonObject:
        return {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": self._reason,
        }

    def _logprobs_of(self, piece: Piece) -> JsonObject | None:
        if piece.logprobs is None:
            return None
        new: JsonObject = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for part in piece.logprobs:
            text = self._tokenizer.token_text(part.token_id)
            top = {self._tokenizer.token_text(token): value for token, value in part.top}
            new["tokens"].append(text)
            new["token_logprobs"].append(part.logprob)
            new["top_logprobs"].append(top)
            new["text_offset"].append(self._offset)
            self._offset += len(self._tokenizer.decode([part.token_id]))
        known = self._logprobs or {name: [] for name in new}
        self._logprobs = {name: known[name] + values for name, values in new.items()}
        return new if piece.logprobs else None

    def whole(self) -> JsonObject:
        """OpenAI's choice."""
        return self._choice(self._text, self._logprobs)


def token_json(tokenizer: Tokenizer, token_id: int, logprob: float) -> JsonObject:
    """A token with its bytes, since part of a character has no text of its own."""
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": logprob,
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


@dataclass
class Reply:
    """One HTTP request's answer."""

    kind: str
    """`chat.completion` or `text_completion`."""
    model: str
    choices: list[ChatChoice] | list[TextChoice]
    samples: int
    usage: Usage
    tokenizer: Tokenizer
    with_usage: bool = False
    with_usage_so_far: bool = False
    with_drafted: bool = False
    id: str = field(init=False)
    created: int = field(init=False)
    _untold: dict[int, list[JsonObject]] = field(init=False, default_factory=dict)
    """Tokens that have not completed a character yet."""

    def __post_init__(self) -> None:
        short = "chatcmpl" if self.kind == "chat.completion" else "cmpl"
        self.id = f"{short}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def take(self, piece: Piece) -> list[JsonObject]:
        """Chunks for one piece."""
        self.usage.add(piece)
        found = self.choices[piece.index].chunks(piece)
        if self.with_drafted:
            held = self._untold.setdefault(piece.index, [])
            held += self._drafted(piece)
            if found:
                found[0]["drafted"] = self._untold.pop(piece.index)
        return [self._object([choice], chunk=True) for choice in found]

    def _drafted(self, piece: Piece) -> list[JsonObject]:
        """Tokens as bytes, since one may be part of a character; special ones show nothing."""
        return [
            {"bytes": self._shown_bytes(token), "drafted": drafted}
            for token, drafted in zip(piece.token_ids, piece.drafted, strict=True)
        ]

    def _shown_bytes(self, token: int) -> list[int]:
        special = self.tokenizer.is_special(token)
        return [] if special else list(self.tokenizer.token_bytes(token))

    def last_chunk(self) -> JsonObject | None:
        """The chunk with the usage, where it is asked for."""
        if not self.with_usage:
            return None
        return self._object([], chunk=True) | self._totals()

    def whole(self) -> JsonObject:
        """The whole answer."""
        return self._object([choice.whole() for choice in self.choices]) | self._totals()

    def _totals(self) -> JsonObject:
        return {"usage": self.usage.as_json(self.samples), "alula": self.usage.speculation()}

    def _object(self, choices: list[JsonObject], chunk: bool = False) -> JsonObject:
        named = chunk and self.kind == "chat.completion"
        found: JsonObject = {
            "id": self.id,
            "object": "chat.completion.chunk" if named else self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"alula-{__version__}",
            "choices": choices,
        }
        if chunk and self.with_usage:
            found["usage"] = self.usage.so_far() if self.with_usage_so_far else None
        return found


async def collected(reply: Reply, pieces: AsyncIterator[Piece]) -> JsonObject:
    """The whole answer, once it is there."""
    async for piece in pieces:
        reply.take(piece)
    return reply.whole()
