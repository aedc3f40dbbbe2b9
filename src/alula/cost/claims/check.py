"""Which claims about a machine are compatible, which exclude each other, and what they imply.

An all-reduce timed nobody knows where is tried in both passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from alula.cost.claims.case import Case
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
        """Claims that cannot hold together."""
        return tuple(found for found in self.findings if found.outcome == "excluded")

    def verdict(self) -> str:
        """In one sentence."""
        if not self.excluded:
            room = [found.says for found in self.findings if found.name.startswith("room")]
            found = ", but ".join(["No claim excludes another", *room[:1]])
        else:
            found = f"The claims exclude each other: {self.excluded[0].says}"
        return f"{found}. {self.decides}" if self.decides else f"{found}."


def check_claims(case: Case, setting: Setting, drafter: KnownDrafter | None) -> Check:
    """Confront a case with what its model must cost on its machine."""
    claims = case.claims
    findings = (
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
