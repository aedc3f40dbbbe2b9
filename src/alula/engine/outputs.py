"""What a finished request looks like, in the shape that users of vLLM know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one token, under the unmodified logits."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    """The likeliest tokens and their log-probabilities, from the top."""


@dataclass(frozen=True)
class SpeculationStats:
    """How speculation fared: one entry of `drafted` and `accepted` per depth, from 1."""

    rounds: int
    emitted: int
    """Tokens that came out of rounds; a request's first token comes from its prompt."""
    drafted: tuple[int, ...]
    """Rounds that drafted this deep and accepted all depths above."""
    accepted: tuple[int, ...]
    """Rounds that accepted this depth."""

    @property
    def tokens_per_round(self) -> float | None:
        """Accepted length τ, the bonus token included; None before the first round."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def acceptance(self) -> list[float]:
        """Conditional acceptance by depth."""
        return [
            accepted / drafted
            for drafted, accepted in zip(self.drafted, self.accepted, strict=True)
            if drafted
        ]


@dataclass(frozen=True)
class CompletionOutput:
    """One sample of a request."""

    index: int
    text: str
    token_ids: list[int]
    """The stop token included, as in vLLM; tokens behind a stop string left out."""
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or stop token id that ended it; None for end-of-sequence and length."""
    logprobs: list[TokenLogprobs] | None
    speculation: SpeculationStats
    preemptions: int
    prefix_tokens: int
    """Prompt tokens whose keys were found in the cache."""


@dataclass(frozen=True)
class RequestOutput:
    """A finished request: its prompt and its samples."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    seed: int
    """The seed in use; drawn from the system's entropy where the request gave none."""
    seconds: float
    """From arrival to the last token."""
    first_token_seconds: float


@dataclass(frozen=True)
class Delta:
    """New text of one sample, safe to show.

    While a tail of the text may yet become a stop string, it and all tokens since are held.
    """

    index: int
    text: str
    token_ids: list[int]
    finished: bool
    drafted: list[bool]
    """Of each token, whether it had been drafted."""
    logprobs: list[TokenLogprobs] | None
    """Of each token, where the request asks for them."""
