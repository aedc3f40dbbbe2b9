"""`alula diagnose`: why a run failed, and what several failed runs have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from alula.cli import options
from alula.cli.console import print_json, print_text
from alula.errors import UsageError

_STANDARD_INPUT = Path("/dev/stdin")


class Form(NamedTuple):
    """How an answer is printed; neither JSON nor Markdown is for people at a terminal."""

    json: bool
    markdown: bool
    full: bool


def diagnose(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The logs of one run of SGLang, vLLM, TensorRT-LLM or alula; several are its "
            "ranks. Plain or gzip, of any size; - is standard input.",
            metavar="LOG",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="What alula doctor --json said of the machine and environment of the run. It "
            "decides between causes that look alike.",
            metavar="report.json",
        ),
    ] = None,
    exit_code: Annotated[
        int | None,
        typer.Option(help="The exit status of the run; of a signal N, -N or 128+N.", metavar="N"),
    ] = None,
    together: Annotated[
        Path | None,
        typer.Option(
            help="Several attempts: which share a cause, which gates stand behind, what one "
            "change would unblock.",
            metavar="attempts.toml",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--if", help="With --together: what this plan would unblock.", metavar="plan.toml"
        ),
    ] = None,
    json: options.Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The answer as Markdown, for an issue.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Keep what quoted lines otherwise leave out: users, hosts, home folders, "
            "addresses, tokens and keys.",
        ),
    ] = False,
) -> None:
    """Why a run failed: the first failure in time, how sure that is, and what would refute it.

    Exits with 0 where nothing was found, 3 where the cause is known, 4 where it failed and no
    signature knows why.
    """
    _check(logs, report, exit_code, together, plan)
    if json and markdown:
        raise UsageError(
            "both --json and --markdown were given", "an answer has one form", "leave one out"
        )
    form = Form(json, markdown, full)
    if together is not None:
        _together(together, plan, form)
    else:
        _one(logs or [], report, exit_code, form)


def _check(
    logs: list[Path] | None,
    report: Path | None,
    exit_code: int | None,
    together: Path | None,
    plan: Path | None,
) -> None:
    if together is None and not logs:
        raise UsageError(
            "there is nothing to diagnose",
            "neither a log nor --together is given",
            "name a log: alula diagnose server.log",
        )
    if together is None and plan is not None:
        raise UsageError(
            "--if stands alone", "a plan is held against attempts", "add --together attempts.toml"
        )
    if together is not None and (logs or report is not None or exit_code is not None):
        raise UsageError(
            "--together takes no log, --report or --exit-code beside it",
            "each attempt in its file names its own",
            f"write them into {together}",
        )


def _one(logs: list[Path], report: Path | None, exit_code: int | None, form: Form) -> None:
    from alula.cli.findings import print_diagnosis
    from alula.cli.findings_markdown import diagnosis_markdown
    from alula.diagnosis import answer
    from alula.diagnosis.behind import behind
    from alula.diagnosis.diagnose import diagnose as run
    from alula.diagnosis.private import without_private
    from alula.diagnosis.report import facts_of, gates_of, load_report

    known = {} if report is None else load_report(report)
    logs = [_STANDARD_INPUT if str(log) == "-" else log for log in logs]
    found = run(logs, facts_of(known), exit_code)
    gates = () if found.cause is None else behind(found.cause, found.facts, gates_of(known))
    found = found if form.full else without_private(found)
    if form.json:
        print_json(answer.as_json(found, gates))
    elif form.markdown:
        print_text(diagnosis_markdown(answer.as_json(found, gates)))
    else:
        print_diagnosis(found, gates)
    raise typer.Exit(answer.exit_code(found))


def _together(attempts: Path, plan: Path | None, form: Form) -> None:
    from alula.cli.findings import print_together
    from alula.cli.findings_markdown import together_markdown
    from alula.diagnosis import answer
    from alula.diagnosis.private import together_without_private
    from alula.diagnosis.together import together

    found = together(attempts, plan)
    found = found if form.full else together_without_private(found)
    if form.json:
        print_json(answer.together_json(found))
    elif form.markdown:
        print_text(together_markdown(answer.together_json(found)))
    else:
        print_together(found)
    raise typer.Exit(answer.together_exit_code(found))
