"""`alula assess`: whether a change of the stack is worth making."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli import options, whatif_options
from alula.cli.console import print_json, print_text, progress_bar
from alula.cli.doctor import scan_cache
from alula.errors import UsageError

if TYPE_CHECKING:
    from alula.assess.answer import Answer


def assess(
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            help="cuda==13.0, driver==590.48.01, flashinfer-python==0.6.18, …",
            metavar="CHANGE",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="A plan.toml, or a lock of alula stack plan.", metavar="FILE"),
    ] = None,
    attempts: Annotated[
        Path | None,
        typer.Option(help="What was tried and failed (docs/diagnose.md).", metavar="FILE.toml"),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option(help="What is said of the machine (docs/estimate.md).", metavar="FILE.toml"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="As alula estimate takes it.", metavar="MODEL")
    ] = None,
    machine: whatif_options.Machine = None,
    gpu: whatif_options.Gpus = None,
    driver: whatif_options.Driver = None,
    links: whatif_options.Links = None,
    env: Annotated[
        Path | None,
        typer.Option(
            help="The environment that would change; also looked through for local changes.",
            metavar="PATH",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="What the change takes, where you know it.", metavar="HOURS", min=0.1),
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(
            help="Write a plan in Markdown, or bring it up to date; text between your own marks "
            "is kept.",
            metavar="plan.md",
        ),
    ] = None,
    json: options.Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The answer as Markdown, for an issue.")
    ] = False,
) -> None:
    """Whether a change is worth making: what it opens, gains and costs, and what else there is.

    Changes nothing and runs nothing. Exits with 0 where it is worth it, 3 where it is not, 4 where
    what is known does not decide it.
    """
    from alula.assess.answer import assess as answer_of
    from alula.assess.change import read_target
    from alula.assess.situation import Inquiry
    from alula.assess.telling import tell
    from alula.machine.whatif import WhatIf

    if json and markdown:
        raise UsageError(
            "both --json and --markdown were given", "an answer has one form", "leave one out"
        )
    if hours is not None and not isfinite(hours):
        raise UsageError(f"--hours {hours} is no time", "hours are a number", "write --hours 8")
    what_if = WhatIf(machine, gpu or (), driver, links)
    inquiry = Inquiry(what_if, attempts, claims, model, env, scan_cache())
    with progress_bar("looking at the machine, its software and what is known", 0):
        answer = answer_of(read_target(changes or (), plan), inquiry, hours)
    if document is not None:
        _keep(document, answer, " ".join(changes or (f"--plan {plan.name if plan else plan}",)))
    told = tell(answer)
    if json:
        print_json(told.data)
    elif markdown:
        from alula.cost.telling.pages import markdown as text

        print_text(text(told))
    else:
        from alula.cli.documents import print_document

        print_document(told)
    raise typer.Exit(answer.verdict)


def _keep(path: Path, answer: Answer, question: str) -> None:
    from datetime import UTC, datetime

    from alula.assess.living import decision_line, update
    from alula.assess.plan import plan_sections

    day = datetime.now(UTC).date().isoformat()
    decision = decision_line(day, question, str(answer.line))
    update(path, f"Plan: {answer.target.title}", plan_sections(answer), decision)
