"""What a probe of an environment records: checks, gates tried again, and the verdict on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from alula.machine.gate import Gate
from alula.machine.records import to_json

FORMAT = 1


class Stage(StrEnum):
    """In the order in which they are run."""

    FILES = "files"
    STATIC = "static"
    IMPORT = "import"
    KERNEL = "kernel"
    COLLECTIVE = "collective"
    ONE_TOKEN = "one token"
    GREEDY = "greedy tokens"
    THROUGHPUT = "throughput"


class Result(StrEnum):
    """What came of a check. One that was not run is no pass."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class Reopened(StrEnum):
    """What became of a gate that was closed in the baseline."""

    OPEN = "open"
    CLOSED = "closed"
    NOOP = "noop"
    """The feature can be asked for, and the engine skips it without a word."""
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    stage: Stage
    name: str
    result: Result
    reason: str = ""
    """What was found, or why it was not run."""
    seconds: float = 0.0
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retest:
    """A gate that was closed in the baseline, and what it is in the environment."""

    gate: Gate
    """As it stands in the baseline."""
    verdict: Reopened
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Everything about one environment."""

    environment: str
    python: str
    created: str
    checks: tuple[Check, ...]
    baseline: str = ""
    gpus: tuple[str, ...] = ()
    """Names of those that were used."""
    driver: str = ""
    gates: tuple[Retest, ...] = ()
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def result(self) -> Result:
        """Failed where one check failed, passed where every check passed."""
        return overall(check.result for check in self.checks)

    def of(self, stage: Stage) -> Result:
        """The same for the checks of one stage."""
        return overall(check.result for check in self.checks if check.stage is stage)

    def verdict(self) -> str:
        """In one line."""
        counts = Counter(check.result for check in self.checks)
        said = ", ".join(f"{counts[result]} {result}" for result in Result)
        start = {
            Result.PASSED: "the environment holds",
            Result.FAILED: "the environment does not hold",
            Result.NOT_RUN: "nothing failed, but not all was run",
        }[self.result]
        gates = Counter(each.verdict for each in self.gates)
        closed = ", ".join(f"{gates[each]} {each}" for each in Reopened if gates[each])
        tried = f"; gates closed in the baseline: {closed}" if closed else ""
        return f"{start}: checks {said}{tried}"

    def to_json(self) -> dict[str, Any]:
        """As plain values, the verdict first."""
        stages = {stage: self.of(stage) for stage in Stage}
        facts: dict[str, Any] = to_json(self)
        return {"verdict": self.verdict(), "result": self.result, "stages": stages, **facts}


def overall(results: Any) -> Result:
    """One result of several; none at all is not run."""
    found = set(results)
    if Result.FAILED in found:
        return Result.FAILED
    return Result.PASSED if found == {Result.PASSED} else Result.NOT_RUN
