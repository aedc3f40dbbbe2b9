"""The case of eight RTX PRO 6000 and six failures, and ways to change its facts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alula.assess.answer import Answer, assess
from alula.assess.change import read_target
from alula.assess.situation import Inquiry
from alula.machine.whatif import WhatIf

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CASE = EXAMPLES / "six-attempts"
CLAIMS = EXAMPLES / "claims-pcie8.toml"
Edit = Callable[[dict[str, Any]], object]


def copied(folder: Path, edit: Edit | None = None) -> Path:
    """The case in a folder of its own, its report edited."""
    case = Path(shutil.copytree(CASE, folder / "case"))
    if edit is not None:
        report = json.loads((case / "report.json").read_text())
        edit(report)
        (case / "report.json").write_text(json.dumps(report))
    return case


def component(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in report["software"]["components"] if each["name"] == name
    )
    return found


def version(name: str, value: str) -> Edit:
    def edit(report: dict[str, Any]) -> None:
        report["software"]["packages"][name] = value
        component(report, name)["version"] = value

    return edit


def ask(
    *changes: str,
    case: Path = CASE,
    plan: Path | None = None,
    attempts: bool = True,
    claims: bool = False,
    model: str | None = None,
    gpus: tuple[str, ...] = (),
    hours: float | None = None,
) -> Answer:
    inquiry = Inquiry(
        WhatIf(str(case / "report.json"), gpus),
        case / "attempts.toml" if attempts else None,
        CLAIMS if claims else None,
        model,
    )
    return assess(read_target(changes, plan), inquiry, hours)


def first_line(answer: Answer) -> str:
    return str(answer.line)
