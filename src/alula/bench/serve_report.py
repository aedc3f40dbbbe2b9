"""What a server did under a load: percentiles, throughput and goodput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alula.bench.serve import Answered, Objectives

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def summarise(answers: Sequence[Answered], objectives: Objectives) -> dict[str, Any]:
    """One load as plain data; seconds and tokens."""
    good = [answer for answer in answers if answer.error is None]
    begun = min(answer.started for answer in answers)
    seconds = max(answer.ended for answer in answers) - begun
    kept = sum(answer.keeps(objectives) for answer in answers)
    return {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "errors": sorted({answer.error for answer in answers if answer.error})[:3],
        "seconds": seconds,
        "tokens": sum(answer.tokens for answer in good),
        "tokens_per_second": sum(answer.tokens for answer in good) / seconds,
        "requests_per_second": len(good) / seconds,
        "goodput_per_second": kept / seconds,
        "first_seconds": percentiles([answer.first_seconds for answer in good]),
        "token_seconds": percentiles([answer.token_seconds for answer in good]),
        "request_seconds": percentiles([answer.ended - answer.started for answer in good]),
        "by_kind": {kind: _kind(good, kind) for kind in sorted({answer.kind for answer in good})},
    }


def _kind(answers: Sequence[Answered], kind: str) -> dict[str, Any]:
    own = [answer for answer in answers if answer.kind == kind]
    rounds = [answer.tokens_per_round for answer in own if answer.tokens_per_round]
    return {
        "requests": len(own),
        "tokens": sum(answer.tokens for answer in own),
        "tokens_per_round": sum(rounds) / len(rounds) if rounds else None,
        "first_seconds": percentiles([answer.first_seconds for answer in own]),
        "token_seconds": percentiles([answer.token_seconds for answer in own]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """By nearest rank: always a value that was measured."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(_SHARES)
    last = len(ordered) - 1
    return {name: ordered[min(last, int(share * len(ordered)))] for name, share in _SHARES.items()}
