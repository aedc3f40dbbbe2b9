"""What is known before the change: the machine, its gates, the attempts, the claims, the model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alula.cost.claims.case import Case, read_case
from alula.cost.reading.model import known_models
from alula.diagnosis.attempts import Attempt, read_attempts
from alula.diagnosis.doctor import Question, examine
from alula.diagnosis.facts import Facts
from alula.diagnosis.features import FEATURES
from alula.diagnosis.private import without_private
from alula.diagnosis.report import facts_of, gates_of, load_report
from alula.diagnosis.together import Judged, judge
from alula.errors import UsageError
from alula.machine.gate import Gate, GateVerdict
from alula.machine.observe import observe
from alula.machine.records import to_json
from alula.machine.source import is_file
from alula.machine.whatif import WhatIf, resolve

_MODEL_OPTIONS = ("--model-path", "--model")


@dataclass(frozen=True)
class Inquiry:
    """What somebody gave beside the change."""

    what_if: WhatIf
    attempts: Path | None = None
    claims: Path | None = None
    model: str | None = None
    environment: Path | None = None
    cache: Path | None = None
    """A file that the doctor keeps its scans in."""


@dataclass(frozen=True)
class Situation:
    """Everything that is known, and what it was read from."""

    facts: Facts
    gates: tuple[Gate, ...]
    """Closed ones of the doctor's report."""
    what_if: WhatIf
    report: str
    """What the facts come from, for people."""
    baseline: Attempt | None = None
    judged: tuple[Judged, ...] = ()
    attempts: str = ""
    case: Case | None = None
    claims: str = ""
    model: str = ""
    model_from: str = ""

    @property
    def tok_s(self) -> float | None:
        """Plain decoding, as it was measured or claimed."""
        if self.baseline is not None and self.baseline.tokens_per_second is not None:
            return self.baseline.tokens_per_second
        return self.case.claims.plain_tok_s if self.case else None

    @property
    def ranks(self) -> int | None:
        """GPUs that the model is spread over, as the baseline or the claims say; None: all."""
        said = self.baseline.ranks() if self.baseline else ""
        if said.isdigit():
            return int(said)
        return self.case.ranks if self.case else None


def look(inquiry: Inquiry) -> Situation:
    """Read everything that was named; runs nothing.

    Raises UsageError for what cannot be read.
    """
    case = None if inquiry.claims is None else read_case(inquiry.claims)
    named = None if inquiry.attempts is None else read_attempts(inquiry.attempts)
    what_if = _machine(inquiry, named[0] if named else None, case)
    report, source = _report(inquiry, what_if)
    baseline, judged = _attempts(named, _saved(what_if))
    model, model_from = _model(inquiry.model, baseline, case)
    facts = facts_of(report)
    said = baseline.ranks() if baseline else ""
    return Situation(
        facts=facts.with_values({"tp": (said or facts.get("gpus"),)}),
        gates=tuple(gate for gate in gates_of(report) if gate.verdict is GateVerdict.CLOSED),
        what_if=what_if,
        report=source,
        baseline=baseline,
        judged=judged,
        attempts=inquiry.attempts.name if inquiry.attempts else "",
        case=case,
        claims=inquiry.claims.name if inquiry.claims else "",
        model=model,
        model_from=model_from,
    )


def _machine(inquiry: Inquiry, baseline: Attempt | None, case: Case | None) -> WhatIf:
    """The machine that was named; else that of the baseline's report, of the claims, this one."""
    if inquiry.what_if.given or inquiry.environment is not None:
        return inquiry.what_if
    if baseline is not None and baseline.report is not None:
        return WhatIf(str(baseline.report))
    return inquiry.what_if if case is None else WhatIf(case.machine)


def _report(inquiry: Inquiry, what_if: WhatIf) -> tuple[Mapping[str, Any], str]:
    """The doctor's report: the saved one, or one of what is here and was asked about."""
    saved = _saved(what_if)
    if saved is None:
        question = Question(FEATURES, inquiry.environment, what_if)
        report = examine(question, os.environ, inquiry.cache).to_json()
        return _as_saved(report), "alula doctor"
    if inquiry.environment is not None:
        raise UsageError(
            "--env and a saved report exclude each other",
            f"{saved} says what software its machine has",
            "name the machine by its GPUs (8x-rtx-pro-6000), or leave --env out",
        )
    return {
        **load_report(saved),
        "machine": _as_saved(to_json(resolve(what_if, observe))),
    }, saved.name


def _as_saved(value: Any) -> Any:
    """Plain values as a saved report holds them: lists, not tuples."""
    return json.loads(json.dumps(value))


def _saved(what_if: WhatIf) -> Path | None:
    path = Path(what_if.machine or "")
    return path if what_if.machine and is_file(path) else None


def _attempts(
    named: tuple[Attempt | None, tuple[Attempt, ...]] | None, saved: Path | None
) -> tuple[Attempt | None, tuple[Judged, ...]]:
    """The attempts, judged by their own reports, by the machine's where they name none."""
    if named is None:
        return None, ()
    baseline, attempts = named
    if saved is not None and (baseline is None or baseline.report is None):
        baseline = replace(baseline or Attempt("baseline"), report=saved)
    judged = (judge(attempt, baseline) for attempt in attempts)
    return baseline, tuple(
        replace(each, diagnosis=without_private(each.diagnosis)) for each in judged
    )


def _model(asked: str | None, baseline: Attempt | None, case: Case | None) -> tuple[str, str]:
    """The model's name as `alula estimate` knows it, and who named it; ("", "") where none did."""
    if asked is not None:
        return asked, "--model"
    if case is not None:
        return case.model, "the claims"
    settings = baseline.settings() if baseline else {}
    path = next((settings[name] for name in _MODEL_OPTIONS if settings.get(name)), "")
    name = _plain(Path(path).name)
    known = next((each for each in known_models() if name == _plain(each)), "")
    return (known, "the baseline's command") if known else ("", "")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
