"""From a change and what is known to an answer: verdict, tables, and all of it as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alula.assess import outlook, sections
from alula.assess.alternatives import Option, options
from alula.assess.change import Target, expanded
from alula.assess.evidence import Ledger, Row, Section
from alula.assess.gains import Gains, price_gains
from alula.assess.nearby import smaller_step
from alula.assess.opening import Opening, open_gates
from alula.assess.price import Price, price
from alula.assess.situation import Inquiry, Situation, look
from alula.assess.verdict import Line, Verdict, decide


@dataclass(frozen=True)
class Answer:
    """Everything that there is to say."""

    target: Target
    situation: Situation
    opening: Opening
    gains: Gains
    price: Price
    ranked: tuple[Option, ...]
    line: Line
    sections: tuple[Section, ...]
    ledger: Ledger

    @property
    def verdict(self) -> Verdict:
        """Also the exit code."""
        return self.line.verdict


def assess(target: Target, inquiry: Inquiry, hours: float | None = None) -> Answer:
    """Answer whether a change is worth making; nothing is changed by it.

    Raises UsageError for what cannot be read, ModelError for a model that is none.
    """
    situation = look(inquiry)
    opening = open_gates(target, situation)
    gains = price_gains(situation)
    own = price(target, situation, inquiry.environment, hours)
    smaller = smaller_step(target, situation, opening)
    ranked = options(situation.facts, gains, opening, (target.title, own.hours), smaller)
    ledger = Ledger()
    line = decide(target, situation, opening, ranked, ledger)
    told = (
        sections.taken_as(target, situation, ledger),
        sections.attempts(situation, opening, ledger),
        sections.opens(opening, ledger),
        sections.stays_closed(opening, ledger),
        sections.most(gains, opening, ranked, ledger),
        sections.prices(own, ledger),
        sections.alternatives(ranked, ledger),
        sections.how(ranked, ledger),
        outlook.would_change(target, situation, ledger),
        outlook.measurements(gains, situation, ledger),
        outlook.lacking(situation, ledger),
    )
    kept = tuple(section for section in told if section.rows)
    return Answer(target, situation, opening, gains, own, ranked, line, kept, ledger)


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer for programs: `evidence` holds what every `evidence` list names."""
    situation, opening = answer.situation, answer.opening
    return {
        "verdict": answer.verdict.name.lower(),
        "exit_code": int(answer.verdict),
        "answer": str(answer.line),
        "sentences": _rows(answer.line.sentences),
        "change": {
            "title": answer.target.title,
            "changes": [str(each) for each in expanded(answer.target.changes, situation.facts)],
        },
        "facts": {name: list(value) for name, value in situation.facts.values.items()},
        "opens": [asdict(each.gate) for each in opening.opened],
        "closes": [asdict(each.gate) for each in opening.shut],
        "closed_before": len(opening.closed_now),
        "attempts": [each.attempt.name for each in situation.judged],
        "unblocks": list(opening.unblocked),
        "options": [_option(each) for each in answer.ranked],
        "bounds_tok_s": {bound.name: bound.tok_s for bound in answer.gains.bounds},
        "sections": [
            {"title": each.title, "headers": list(each.headers), "rows": _rows(each.rows)}
            for each in answer.sections
        ],
        "evidence": {key: fact._asdict() for key, fact in answer.ledger.by_key().items()},
    }


def _rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"cells": list(row.cells), "evidence": list(row.evidence)} for row in rows]


def _option(each: Option) -> dict[str, Any]:
    gain = None if each.gain is None else [each.gain.low, each.gain.high]
    return {
        "name": each.name,
        "gain_tok_s": gain,
        "probability": each.probability,
        "hours": each.hours,
        "is_change": each.is_change,
    }
