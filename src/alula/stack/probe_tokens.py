"""Tokens and speed of an environment held against the baseline's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from alula.machine.probe_child import Outcome
from alula.stack.probe_children import result_of, said_by
from alula.stack.probe_records import Check, Result, Stage

GAP = 0.25
"""Above this distance between the best two logits another token is no rounding: in bfloat16 those
of the small decoder are off by 0.08 at most from double precision, and two runs by twice that."""
NOISE = 0.03
"""Share by which repeated runs of one environment differ, at least."""
ROUNDS = 3


@dataclass(frozen=True)
class Limits:
    """What counts as the same."""

    gap: float = GAP
    noise: float = NOISE


class Run(NamedTuple):
    """What a workload printed."""

    tokens: tuple[tuple[int, ...], ...]
    """One row for each prompt."""
    gaps: tuple[tuple[float, ...], ...]
    speeds: tuple[float, ...]
    kernels: dict[str, int] | None


class Divergence(NamedTuple):
    """The first token that differs."""

    prompt: int
    place: int
    expected: int
    found: int
    gap: float | None
    """Between the baseline's best two logits there; None where the workload does not say."""


def read_run(measured: dict[str, Any]) -> Run | None:
    """What a workload printed, None where it is not of that form."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        tokens = _rows(measured["tokens"], int)
        if not tokens or not any(tokens):
            return None
        speeds = tuple(float(each) for each in measured.get("tokens_per_second", ()))
        kernels = measured.get("kernels") or {}
        # Two workloads that tell of no kernel at all have not launched the same ones.
        counted = {str(name): int(count) for name, count in kernels.items()} or None
        return Run(tokens, _rows(measured.get("gaps", ()), float), speeds, counted)
    return None


def _rows(value: Any, kind: Callable[[Any], Any]) -> tuple[tuple[Any, ...], ...]:
    rows = value if not value or isinstance(value[0], list) else [value]
    return tuple(tuple(kind(item) for item in row) for row in rows)


def first_divergence(expected: Run, found: Run) -> Divergence | None:
    """The first token of the first prompt in which two runs differ."""
    for prompt, (ours, theirs) in enumerate(_paired(expected.tokens, found.tokens)):
        for place in range(max(len(ours), len(theirs))):
            pair = [row[place] if place < len(row) else -1 for row in (ours, theirs)]
            if pair[0] != pair[1]:
                gap = None
                with suppress(IndexError):
                    gap = expected.gaps[prompt][place]
                return Divergence(prompt, place, pair[0], pair[1], gap)
    return None


def _paired(
    ours: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    longest = max(len(ours), len(theirs))
    padded = [[*rows, *[()] * (longest - len(rows))] for rows in (ours, theirs)]
    return list(zip(*padded, strict=True))


def check_first(outcome: Outcome) -> Check:
    """Whether a token came out, right as far as the workload can tell."""
    run = read_run(outcome.measured)
    result, reason = result_of(outcome), said_by(outcome)
    if result is Result.PASSED and run is None:
        result, reason = Result.FAILED, "the workload printed no tokens"
    if run is not None and not reason:
        reason = f"token {run.tokens[0][0]}" if run.tokens[0] else ""
    measured = {k: v for k, v in outcome.measured.items() if k in ("model", "first_token_error")}
    return Check(Stage.ONE_TOKEN, "the first token", result, reason, outcome.seconds, measured)


def check_greedy(expected: Run, found: Run, limits: Limits) -> Check:
    """Whether the tokens are the baseline's, or differ first where two were nearly the same."""
    name = "the baseline's tokens"
    count = sum(len(row) for row in expected.tokens)
    divergence = first_divergence(expected, found)
    if divergence is None:
        return Check(Stage.GREEDY, name, Result.PASSED, f"all {count} are the same")
    prompt, place, ours, theirs, gap = divergence
    where = f"token {place} of prompt {prompt} is {theirs}, not {ours}"
    measured = {"prompt": prompt, "place": place, "gap": gap, "limit": limits.gap}
    if gap is None:
        reason = f"{where}; the workload does not say how near the best two were"
        return Check(Stage.GREEDY, name, Result.FAILED, reason, measured=measured)
    far = gap > limits.gap
    how = f"{where}, where the best two were {gap:.3g} apart ({limits.gap:g} at most counts)"
    result = Result.FAILED if far else Result.PASSED
    return Check(Stage.GREEDY, name, result, how, measured=measured)


def check_throughput(
    expected: Sequence[Sequence[float]], found: Sequence[Sequence[float]], limits: Limits
) -> Check:
    """Tokens a second of runs taken in turns, each a row of repetitions.

    Noise is what runs of one environment differ by among themselves, and the stated share at least.
    """
    ours, theirs = ([median(row) for row in rows if row] for rows in (expected, found))
    if not ours or not theirs:
        reason = "the workload does not say its speed"
        return Check(Stage.THROUGHPUT, "tokens a second", Result.NOT_RUN, reason)
    noise = max(limits.noise, _spread(ours), _spread(theirs))
    ratio = median(theirs) / median(ours)
    reason = (
        f"{median(theirs):.4g} tok/s against {median(ours):.4g}, {ratio:.3f} times; "
        f"noise {noise:.1%}, {len(ours)} runs of each in turns"
    )
    measured = {"ratio": ratio, "noise": noise, "baseline": ours, "environment": theirs}
    result = Result.FAILED if ratio < 1 - noise else Result.PASSED
    return Check(Stage.THROUGHPUT, "tokens a second", result, reason, measured=measured)


def _spread(values: Sequence[float]) -> float:
    """Half of what repeated values differ by, as a share of their middle."""
    return (max(values) - min(values)) / (2 * median(values))
