"""`alula stack probe`: whether an environment holds, from its files to its speed."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli.console import messages, print_dim, print_json, print_text, progress_bar
from alula.cli.stack_options import environment_named
from alula.errors import MachineError, UsageError

if TYPE_CHECKING:
    from alula.stack.probe_records import ProbeReport

_FAILED = 1
_STYLES = {"failed": "red", "not run": "dim", "noop": "yellow", "closed": "yellow"}


def probe(
    environment: Annotated[
        str | None,
        typer.Argument(
            help="The environment to probe: current, baseline, a name of alula stack list or a "
            "folder; by default alula's own.",
            metavar="[ENV]",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The environment that tokens and speed are held against, and whose closed gates "
            "are tried again.",
            metavar="ENV",
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            help="A script that decodes greedily with the environment's own engine, in place of "
            "alula's small decoder; the feature to switch on stands in ALULA_FEATURE.",
            metavar="SCRIPT",
        ),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(
            help="Another token than the baseline's counts as rounding where its best two logits "
            "were no further apart than this; by default 0.25.",
            metavar="LOGITS",
            show_default=False,
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Share by which speed may fall; what repeated runs differ by comes on top of it. "
            "By default 0.03.",
            metavar="SHARE",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Probe GPUs that somebody computes on.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Staged checks of an environment, each passed, failed or not run.

    Files, static, import, kernel, collective, one token, greedy tokens, throughput; then every
    gate that was closed in the baseline, one at a time. Each that runs something is a child
    process of that environment, with limits. Exits with 1 where a check failed.
    """
    from alula.machine.privacy import own_redactor
    from alula.stack.probe import Asked
    from alula.stack.probe import probe as run
    from alula.stack.probe_records import Result
    from alula.stack.probe_tokens import GAP, NOISE, Limits

    limits = Limits(GAP if gap is None else gap, NOISE if noise is None else noise)
    if limits.gap < 0 or not 0 <= limits.noise < 1:
        raise UsageError(
            f"--gap {limits.gap:g} and --noise {limits.noise:g} are no limits",
            "a gap is a distance, and noise a share below 1",
            "write for example --gap 0.25 --noise 0.03",
        )
    tried = environment_named(environment) if environment else None
    before = environment_named(baseline) if baseline else None
    asked = Asked(
        tried.path if tried else None,
        before.path if before else None,
        workload,
        limits,
        force,
    )
    report = run(asked, os.environ, _announce, progress_bar)
    if tried is not None and tried.record is not None:
        _note(tried.record.name, report)
    if json:
        print_json(own_redactor().clean(report.to_json()))
    else:
        _print(report)
    if report.result is Result.FAILED:
        raise typer.Exit(_FAILED)


def _note(name: str, report: ProbeReport) -> None:
    from alula.stack.places import stack_home
    from alula.stack.records import Probed, note_probe

    at = datetime.fromisoformat(report.created)
    verdict = report.verdict()
    try:
        note_probe(stack_home(), name, Probed(at=at, result=report.result.value, verdict=verdict))
    except MachineError as error:  # the report is worth more than its trace
        print_dim([f"it is not kept for alula stack switch: {error}"])


def _announce(stage: str) -> None:
    messages().print(f"probing: {stage} …", style="dim", markup=False)


def _print(report: ProbeReport) -> None:
    print_text(report.verdict(), "bold")
    gpus = f"{len(report.gpus)} × {report.gpus[0]}" if report.gpus else "no GPU"
    print_text(f"{report.environment}, Python {report.python}, {gpus}", "dim")
    stage = ""
    for check in report.checks:
        if check.stage != stage:
            stage = check.stage
            print_text(f"\n{stage}")
        _line(check.result, check.name, check.reason)
    if report.gates:
        print_text(f"\ngates that were closed in {report.baseline}")
    for each in report.gates:
        gate = each.gate
        named = f"{gate.component}, {gate.feature}, {gate.layer}: {gate.predicate}"
        _line(each.verdict, named, each.reason)
    for note in report.notes:
        print_text(f"\nnote: {note}", "dim")


def _line(word: str, name: str, reason: str) -> None:
    said = f": {reason}" if reason else ""
    print_text(f"  {word:<8}{name}{said}", _STYLES.get(word, ""))
