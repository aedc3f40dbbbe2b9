"""Several failed attempts at once: what they share, what stands behind, what a plan unblocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from packaging.version import Version

from alula.diagnosis.attempts import Attempt, Plan, read_attempts, read_plan
from alula.diagnosis.behind import Met, gates_met
from alula.diagnosis.cause import Cause, Diagnosis
from alula.diagnosis.chains import chains
from alula.diagnosis.changes import Change, applied
from alula.diagnosis.diagnose import diagnose
from alula.diagnosis.facts import Facts, all_hold
from alula.diagnosis.figures import explain_figure, feature_asked
from alula.diagnosis.report import facts_of, gates_of, load_report
from alula.diagnosis.words import shared_words
from alula.machine.gate import GateVerdict, Layer


@dataclass(frozen=True)
class Judged:
    """One attempt with its cause and the gates of its feature."""

    attempt: Attempt
    facts: Facts
    diagnosis: Diagnosis
    chain: tuple[Met, ...]

    @property
    def behind(self) -> tuple[Met, ...]:
        """The gates that stand behind the cause."""
        return tuple(gate for gate in self.chain if not gate.is_cause)

    def unblocked_by(self, changes: Iterable[Change]) -> bool:
        """Whether it would run as wanted after these changes; False where that is not known."""
        cause = self.diagnosis.cause
        if cause is None:
            return False
        return _cleared(cause, applied(changes, self.facts))


@dataclass(frozen=True)
class Pair:
    """What two attempts have in common: the cause, only its kind, or only words."""

    first: str
    second: str
    same_cause: bool
    kind: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Together:
    """All attempts, and what they say as a whole."""

    judged: tuple[Judged, ...]
    pairs: tuple[Pair, ...]
    openers: tuple[tuple[Change, tuple[str, ...]], ...]
    """Each change that opens a gate or clears a cause, and what it would unblock alone."""
    plan: Plan | None
    unblocked: tuple[str, ...]
    """Attempts that the plan would unblock."""
    toolkit: str
    """The toolkit that fixes ask for, the newest where they differ; "" where none does."""
    toolkit_condition: tuple[str, ...]
    """Attempts whose fix has that toolkit for a condition."""
    toolkit_fix: tuple[str, ...]
    """Attempts that the toolkit alone unblocks."""


def together(attempts_file: Path, plan_file: Path | None = None) -> Together:
    """Diagnose all attempts of a file. Raises `UsageError` for files that cannot be read."""
    baseline, attempts = read_attempts(attempts_file)
    plan = None if plan_file is None else read_plan(plan_file)
    judged = tuple(judge(attempt, baseline) for attempt in attempts)
    openers = _openers(judged)
    toolkits = [change for change, _ in openers if change.component == "cuda"]
    toolkit = max(toolkits, key=lambda change: Version(change.version), default=None)
    return Together(
        judged=judged,
        pairs=tuple(_pair(first, second) for first, second in combinations(judged, 2)),
        openers=openers,
        plan=plan,
        unblocked=_unblocked(judged, plan.changes if plan else ()),
        toolkit=toolkit.version if toolkit else "",
        toolkit_condition=tuple(
            each.attempt.name
            for each in judged
            if toolkit and any(gate.known.opened_by == toolkit for gate in each.behind)
        ),
        toolkit_fix=_unblocked(judged, (toolkit,) if toolkit else ()),
    )


def judge(attempt: Attempt, baseline: Attempt | None) -> Judged:
    """The cause of one attempt: from its log, else from its settings and its figure."""
    path = attempt.report or (baseline.report if baseline else None)
    report = {} if path is None else load_report(path)
    settings = {f"setting.{name}": (value,) for name, value in attempt.settings().items()}
    said = {"command": (attempt.command,), "tp": (attempt.ranks(),)}
    facts = facts_of(report).with_values({**settings, **said})
    diagnosis = diagnose(attempt.logs, facts, attempt.exit_code)
    diagnosis = explain_figure(attempt, baseline, facts, diagnosis)
    cause = diagnosis.cause
    feature = (cause.ruling.feature if cause else "") or feature_asked(attempt)
    chain = gates_met(cause, feature, facts, gates_of(report))
    return Judged(attempt, facts, diagnosis, chain)


def verdict(found: Together) -> str:
    """The answer in one sentence."""
    if found.plan is None:
        count = len({pair.first for pair in found.pairs if pair.same_cause})
        shared = "some share a root cause" if count else "no two share a root cause"
        return f"Of {len(found.judged)} attempts {shared}."
    said = f"{found.plan.name} as planned unblocks {len(found.unblocked)} of {len(found.judged)}"
    if not found.toolkit:
        return f"{said}."
    condition, fix = len(found.toolkit_condition), len(found.toolkit_fix)
    return (
        f"{said}; a toolkit ≥ {found.toolkit} is a precondition of {_fixes(condition)} "
        f"and the fix of {_number(fix)}."
    )


def _fixes(count: int) -> str:
    return "no fix" if count == 0 else f"{_number(count)} fix" + ("" if count == 1 else "es")


def _number(count: int) -> str:
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[count] if count < len(words) else str(count)


def _cleared(cause: Cause, facts: Facts) -> bool:
    ruling = cause.ruling
    if ruling.cleared_when is not None:
        return all_hold(ruling.cleared_when, facts) is True
    chain = chains().of(ruling.feature)
    # A setting, or memory, is not changed by other software.
    if ruling.layer not in frozenset(Layer) or not chain:
        return False
    return all(known.verdict(facts) is GateVerdict.OPEN for known in chain)


def _unblocked(judged: Iterable[Judged], changes: tuple[Change, ...]) -> tuple[str, ...]:
    if not changes:
        return ()
    return tuple(each.attempt.name for each in judged if each.unblocked_by(changes))


def _openers(judged: tuple[Judged, ...]) -> tuple[tuple[Change, tuple[str, ...]], ...]:
    changes = [gate.known.opened_by for each in judged for gate in each.chain]
    changes += [
        Change.towards(condition)
        for each in judged
        if each.diagnosis.cause is not None
        for condition in each.diagnosis.cause.ruling.cleared_when or ()
    ]
    distinct = dict.fromkeys(change for change in changes if change is not None)
    return tuple((change, _unblocked(judged, (change,))) for change in distinct)


def _pair(first: Judged, second: Judged) -> Pair:
    one, other = first.diagnosis.cause, second.diagnosis.cause
    same = one is not None and other is not None and _identity(one) == _identity(other)
    kinds = {cause.ruling.failure_class for cause in (one, other) if cause is not None}
    return Pair(
        first=first.attempt.name,
        second=second.attempt.name,
        same_cause=same,
        kind=kinds.pop() if one is not None and other is not None and len(kinds) == 1 else "",
        words=shared_words(first.diagnosis, second.diagnosis),
    )


def _identity(cause: Cause) -> tuple[str, str, str]:
    return cause.name, cause.ruling.owner, cause.ruling.feature
