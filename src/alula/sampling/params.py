"""What a request asks of the sampler, under the names vLLM's users know; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from alula.errors import UsageError

FLOAT32_MAX = 3.4e38
FLOAT32_TINY = 1.2e-38
MOST_LOGPROBS = 20
MOST_SAMPLES = 1024
SEEDS = 2**64


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Raises UsageError for a value outside its range; nothing is clamped or ignored.
    """

    n: int = 1
    """Samples per prompt, each with its own key."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep a token while the mass of the likelier ones is below top_p; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the likeliest; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt and output."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once per occurrence in the output."""
    logit_bias: Mapping[int, float] | None = None
    """Token id to what is added to its logit, after the penalties."""
    seed: int | None = None
    """0 … 2^64 - 1; None draws a fresh one, which the answer names."""
    stop: str | Sequence[str] | None = None
    """Strings that end the output; kept as a tuple."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the output; kept as a tuple."""
    max_tokens: int = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    """Alternatives to report per token; 0 reports the chosen token only, None nothing."""
    grammar: str | None = None
    """What the output has to match, as llguidance writes grammars (`sampling.grammar`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(
            self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids)
        )
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        _whole("n", self.n, 1, MOST_SAMPLES)
        _number("temperature", self.temperature, 0.0, FLOAT32_MAX)
        _whole("top_k", self.top_k, -1)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _whole("max_tokens", self.max_tokens, 1)
        if self.seed is not None:
            _whole("seed", self.seed, 0, SEEDS - 1)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if self.grammar is not None and self.ignore_eos:
            rule = "a grammar ends the output by end-of-sequence"
            raise _refusal("ignore_eos", self.ignore_eos, rule)

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0, as far as fp32 can tell."""
        return self.temperature < FLOAT32_TINY

    @property
    def has_filters(self) -> bool:
        """Whether some tokens can be left out before one is drawn."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def ranked_filters(self) -> int:
        """How many of top_k and top_p, which rank the tokens, are on."""
        return (self.top_k > 0) + (self.top_p < 1.0)

    @property
    def has_penalties(self) -> bool:
        """Whether a logit depends on the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _number(name: str, value: object, low: float, high: float, *, above_low: bool = False) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value > low if above_low else value >= low
        if above and value <= high:
            return
    bracket = "(" if above_low else "["
    raise _refusal(name, value, f"it must be a number in {bracket}{low:g}, {high:g}]")


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, int) and not isinstance(value, bool):
        inside = value >= low and (high is None or value <= high)
        if inside:
            return
    bound = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise _refusal(name, value, f"it must be a whole number {bound}")


def _strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(strings, Iterable):
        raise _refusal("stop", stop, "it must be a string or a sequence of strings")
    found = tuple(strings)
    if not all(isinstance(text, str) and text for text in found):
        raise _refusal("stop", stop, "every stop string must be text and not empty")
    if any("\ud800" <= character <= "\udfff" for character in "".join(found)):
        raise _refusal("stop", stop, "a lone surrogate is no Unicode text and never comes up")
    return found


def _token_ids(name: str, ids: object) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise _refusal(name, ids, "it must be a sequence of token ids")
    found = tuple(ids)
    for token in found:
        _whole(f"a token id in {name}", token, 0)
    return found


def _bias(bias: object) -> dict[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise _refusal("logit_bias", bias, "it must map token ids to numbers")
    for token, value in bias.items():
        _whole("a token id in logit_bias", token, 0)
        _number(f"logit_bias of token {token}", value, -FLOAT32_MAX, FLOAT32_MAX)
    return dict(bias)


def _refusal(name: str, value: object, rule: str) -> UsageError:
    return UsageError(
        f"{name} cannot be {value!r}", rule, f"give {name} a value it allows, or leave it out"
    )
