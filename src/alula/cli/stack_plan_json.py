"""A plan for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alula.stack.ask import Answer
from alula.stack.by_hand import Judged
from alula.stack.plan import Plan


def as_json(answer: Answer, written: Sequence[Path]) -> dict[str, Any]:
    """Everything that the terminal shows, as plain values."""
    plan = answer.plan
    return {
        "format": 1,
        "verdict": answer.verdict(),
        "satisfiable": plan.attempt is not None,
        "holds": answer.holds,
        "by_hand": _by_hand(answer.judged) if answer.judged else None,
        "decisions": [asdict(each) for each in plan.decisions],
        "conflicts": [
            {"links": [list(link) for link in chain.links], "words": list(chain.words)}
            for chain in plan.conflicts
        ],
        "checks": [asdict(each) for each in plan.findings],
        "features": _features(plan),
        "goals_unmet": list(plan.unmet),
        "risks": list(plan.risks),
        "lost": list(plan.lost),
        "odd_in_indexes": list(plan.odd),
        "download_bytes": plan.download_bytes,
        "disk_bytes": plan.disk_bytes,
        "unread_bytes": plan.unread_bytes,
        "lock": plan.lock.model_dump(mode="json") if plan.lock else None,
        "written": [str(path) for path in written],
    }


def _by_hand(judged: Judged) -> dict[str, Any]:
    return {
        "decisions": [each.model_dump() for each in judged.hand_made.decision],
        "contradictions": [asdict(each) for each in judged.contradictions],
        "not_checked": [asdict(each) for each in judged.not_checked],
        "kept": list(judged.kept),
    }


def _features(plan: Plan) -> dict[str, Any]:
    return {
        each.name: {
            "open": not each.closed(),
            "was_closed": each.was_closed,
            "gates": [asdict(gate) for gate in each.gates],
        }
        for each in plan.features
    }
