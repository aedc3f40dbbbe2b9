"""One sample as an object of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import secrets
from typing import Any

from alula.server.messages import Finish, Logprob, Piece
from alula.text.tokenizer import Tokenizer
from alula.text.tools import Call, ToolForm, ToolReader

JsonObject = dict[str, Any]


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
