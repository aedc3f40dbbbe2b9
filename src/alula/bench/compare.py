"""What interleaved runs say: speed, accepted length and break-even by kind of text; the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

PLAIN = "plain"
_NOISE = 0.02
"""Differences below this share are not told apart from none."""


class Run(NamedTuple):
    """One prompt answered once by one contender; times leave the prompt and first token out."""

    kind: str
    prompt: int
    repeat: int
    shape: str
    token_ids: list[int]
    seconds: float
    rounds: int
    emitted: int
    """Tokens that came out of rounds."""
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    drafting_seconds: tuple[float, ...]
    """Launches that verified a draft."""


@dataclass(frozen=True)
class Spread:
    """A value that was measured several times."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """One contender on one kind of text."""

    kind: str
    shape: str
    tokens_per_second: Spread
    gain: Spread
    """Times plain's speed in the same repeat."""
    tokens_per_round: float
    """Accepted length τ."""
    acceptance: list[float]
    """Conditional, by depth."""
    round_seconds: float
    """Wall time of a round, rounds without a draft included."""
    drafting_round_seconds: float | None
    """Median launch that verified a draft; None where none did."""
    step_seconds: float
    """Wall time of a plain step."""
    break_even: float
    """The τ at which a round costs as much per token as plain steps."""


@dataclass(frozen=True)
class Comparison:
    """All contenders on all kinds, and where their tokens differ from plain's."""

    shapes: list[str]
    kinds: list[str]
    measured: list[Measured]
    overall: dict[str, Spread]
    """Gain by shape over all kinds together."""
    differing: dict[str, list[int]]
    """By shape the numbers of prompts whose tokens are not plain's."""

    @property
    def identical(self) -> bool:
        """Whether every shape gave plain's tokens on every prompt."""
        return not any(self.differing.values())

    def of(self, kind: str, shape: str) -> Measured:
        """One contender on one kind."""
        return next(m for m in self.measured if (m.kind, m.shape) == (kind, shape))


def compare(runs: Sequence[Run]) -> Comparison:
    """Summarise runs of plain decoding and other contenders on the same prompts."""
    shapes = _distinct(run.shape for run in runs)
    shapes.sort(key=lambda shape: shape != PLAIN)
    kinds = _distinct(run.kind for run in runs if run.rounds)
    measured = [
        _measured(kind, shape, [run for run in runs if run.kind == kind])
        for kind in kinds
        for shape in shapes
    ]
    others = shapes[1:]
    return Comparison(
        shapes=shapes,
        kinds=kinds,
        measured=measured,
        overall={shape: _gain(runs, shape) for shape in others if kinds},
        differing={shape: _differing(runs, shape) for shape in others},
    )


def verdict(comparison: Comparison) -> str:
    """What speculation gained, in words."""
    if not comparison.kinds:
        return "Every answer ended with its first token; nothing to compare."
    if not comparison.overall:
        return "Plain decoding alone was measured; nothing to compare."
    parts = [_judgement(comparison, shape) for shape in comparison.overall]
    return "; ".join([*parts, _sameness(comparison)]) + "."


def title(shape: str) -> str:
    """How a person calls a shape, which begins with its drafter: plain, ngram, eagle3 chain:4."""
    drafter, _, size = shape.partition(" ")
    called = {"ngram": "prompt lookup", "eagle3": "EAGLE-3", "auto": "automatic speculation"}
    return f"{called.get(drafter, drafter)} {size}".strip()


def _judgement(comparison: Comparison, shape: str) -> str:
    gains = {kind: comparison.of(kind, shape).gain for kind in comparison.kinds}
    ranked = sorted(gains.items(), key=lambda item: -item[1].median)
    words = ", ".join(f"{gain.median:.2f}× on {kind}" for kind, gain in ranked)
    name = title(shape)
    return f"{name[0].upper()}{name[1:]} {_pays(list(gains.values()))}: {words}"


def _pays(gains: list[Spread]) -> str:
    """A kind is won or lost where every repeat says so."""
    wins = any(gain.median >= 1 + _NOISE and gain.low >= 1 for gain in gains)
    loses = any(gain.median <= 1 - _NOISE and gain.high <= 1 for gain in gains)
    if wins:
        return "pays on some kinds and costs on others" if loses else "pays"
    if loses:
        return "does not pay"
    is_even = all(abs(gain.median - 1) < _NOISE for gain in gains)
    return "makes no difference" if is_even else "may pay or not, the repeats disagree"


def _sameness(comparison: Comparison) -> str:
    if comparison.identical:
        return "tokens identical"
    wrong = {shape: len(prompts) for shape, prompts in comparison.differing.items() if prompts}
    listed = ", ".join(f"{title(shape)} on {count} prompts" for shape, count in wrong.items())
    return f"TOKENS DIFFER from plain's: {listed}"


def _measured(kind: str, shape: str, runs: Sequence[Run]) -> Measured:
    own = [run for run in runs if run.shape == shape and run.rounds]
    plain = [run for run in runs if run.shape == PLAIN and run.rounds]
    round_seconds, step_seconds = _per_round(own), _per_round(plain)
    drafting = [seconds for run in own for seconds in run.drafting_seconds]
    return Measured(
        kind=kind,
        shape=shape,
        tokens_per_second=_spread(_speeds(own)),
        gain=_gain(runs, shape),
        tokens_per_round=sum(run.emitted for run in own) / sum(run.rounds for run in own),
        acceptance=_acceptance(own),
        round_seconds=round_seconds,
        drafting_round_seconds=median(drafting) if drafting else None,
        step_seconds=step_seconds,
        break_even=round_seconds / step_seconds,
    )


def _per_round(runs: Sequence[Run]) -> float:
    return median(run.seconds / run.rounds for run in runs)


def _speeds(runs: Sequence[Run]) -> list[float]:
    """Tokens per second of each repeat."""
    repeats = sorted({run.repeat for run in runs})
    parts = [[run for run in runs if run.repeat == repeat] for repeat in repeats]
    return [sum(run.emitted for run in part) / sum(run.seconds for run in part) for part in parts]


def _gain(runs: Sequence[Run], shape: str) -> Spread:
    def of(name: str) -> list[float]:
        return _speeds([run for run in runs if run.shape == name and run.rounds])

    return _spread([own / plain for own, plain in zip(of(shape), of(PLAIN), strict=True)])


def _acceptance(runs: Sequence[Run]) -> list[float]:
    drafted = _by_depth(runs, lambda run: run.drafted)
    accepted = _by_depth(runs, lambda run: run.accepted)
    return [a / d for a, d in zip(accepted, drafted, strict=True) if d]


def _by_depth(runs: Sequence[Run], counts: Callable[[Run], tuple[int, ...]]) -> list[int]:
    return [sum(depth) for depth in zip_longest(*map(counts, runs), fillvalue=0)]


def _differing(runs: Sequence[Run], shape: str) -> list[int]:
    """Plain's own runs are held against its first one too: they must repeat themselves."""
    first = {run.prompt: run.token_ids for run in reversed(runs) if run.shape == PLAIN}
    pair = [run for run in runs if run.shape in (PLAIN, shape)]
    return sorted({run.prompt for run in pair if run.token_ids != first[run.prompt]})


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
