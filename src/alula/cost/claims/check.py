"""Which claims about a machine are compatible, which exclude each other, and what they imply.

An all-reduce timed nobody knows where is tried in both passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from alula.cost.claims.case import Case, Claims
from alula.cost.claims.communication import (
    fit_of_plain_step,
    number_of_allreduces,
    room_for_rows,
    share_of_verification,
    slower_attempt,
)
from alula.cost.claims.finding import Finding
from alula.cost.claims.implied import (
    bound_by_share,
    bound_by_weights,
    break_even,
    emitted,
    needed_allreduce,
    rows_of_verification,
    short_chain,
)
from alula.cost.claims.limits import (
    fastest_plain,
    fastest_verification,
    memory,
    no_exchange,
    tokens_of_a_round,
)
from alula.cost.claims.rows import exchanges
from alula.cost.claims.stories import Story, deciding, stories
from alula.cost.machine import KnownDrafter
from alula.cost.round import Setting


@dataclass(frozen=True)
class Check:
    """All that follows from a case."""

    case: Case
    setting: Setting
    findings: tuple[Finding, ...]
    stories: tuple[Story, ...]
    decides: str | None

    @property
    def excluded(self) -> tuple[Finding, ...]:
        """Claims that cannot hold together, or not at all."""
        return tuple(f for f in self.findings if f.outcome in ("excluded", "impossible"))

    def verdict(self) -> str:
        """In one sentence."""
        worst = sorted(self.excluded, key=lambda found: found.outcome != "impossible")
        if not worst:
            room = [found.says for found in self.findings if found.name.startswith("room")]
            odd = [found.says for found in self.findings if found.outcome == "differs"]
            found = ", but ".join(["No claim excludes another", *[*room, *odd][:1]])
        elif worst[0].outcome == "impossible":
            found = f"A claim cannot hold: {worst[0].says}"
        else:
            found = f"The claims exclude each other: {worst[0].says}"
        return f"{found}. {self.decides}" if self.decides else f"{found}."


def check_claims(
    case: Case, setting: Setting, drafter: KnownDrafter | None, memory_bytes: float = math.inf
) -> Check:
    """Confront a case with what its model must cost on its machine, of so much memory a GPU."""
    claims = case.claims
    alone = no_exchange(claims, setting)
    if not exchanges(setting):
        claims = replace(claims, allreduces=None, allreduce_us=None, communication_share=None)
    findings = (
        *memory(setting, memory_bytes),
        *alone,
        *fastest_plain(claims, setting),
        *fastest_verification(claims, setting),
        *tokens_of_a_round(case),
        *number_of_allreduces(claims, setting),
        *fit_of_plain_step(claims, setting),
        *share_of_verification(claims),
        *room_for_rows(claims, setting),
        *emitted(claims, drafter),
        *break_even(claims),
        *rows_of_verification(claims, setting),
        *needed_allreduce(claims, setting),
        *short_chain(setting, drafter),
        *bound_by_weights(case, setting),
        *bound_by_share(claims),
        *[found for attempt in case.attempts for found in slower_attempt(attempt, claims, setting)],
        *_outcomes(case),
    )
    told = stories(claims, setting)
    return Check(case, setting, findings, told, deciding(told))


def unchecked(claims: Claims, attempts: int) -> list[str]:
    """What cannot be checked for want of another claim."""
    wanting = {
        "speculative_tok_s": (claims.speculative_tok_s, claims.verify_ms, "verify_ms"),
        "allreduce_us": (claims.allreduce_us, claims.allreduces, "allreduces"),
        "communication_share": (claims.communication_share, claims.verify_ms, "verify_ms"),
        "attempts_failed": (claims.attempts_failed, attempts, "[[attempts]]"),
    }
    return [
        f"{key}, without {needed}"
        for key, (given, other, needed) in wanting.items()
        if given is not None and not other
    ]


def _outcomes(case: Case) -> Iterator[Finding]:
    if not case.attempts:
        return
    counts = {
        outcome: sum(attempt.outcome == outcome for attempt in case.attempts)
        for outcome in ("failed", "slower", "faster", "untested")
    }
    claimed = case.claims.attempts_failed
    agree = claimed is None or claimed == counts["failed"]
    shown = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    yield Finding(
        "what was tried",
        "an attempt failed if it did not run",
        " + ".join(str(number) for number in counts.values() if number)
        + f" = {len(case.attempts)}",
        "compatible" if agree else "differs",
        shown if agree else f"{shown}; {claimed} were said to have failed",
        {key: float(number) for key, number in counts.items()},
    )
