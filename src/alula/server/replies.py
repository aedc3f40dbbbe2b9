"""From the engine's pieces to the objects of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from alula import __version__
from alula.server.choices import ChatChoice, JsonObject, TextChoice
from alula.server.messages import Finish, Piece
from alula.text.tokenizer import Tokenizer


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
