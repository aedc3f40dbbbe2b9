"""`alula doctor`: what this machine and its software really support."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from alula.cli import whatif_options
from alula.cli.console import messages, print_json, print_text, progress_bar
from alula.errors import MachineError, UsageError

_CLOSED = 1


def doctor(
    features: Annotated[
        list[str] | None,
        typer.Argument(
            help="Show the whole chain of gates of a feature: flashinfer-allreduce-fusion, "
            "torch-symm-mem, custom-allreduce, flashinfer-pcie-allreduce, eagle3.",
            metavar="FEATURE",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option(
            help="Examine this virtual environment instead of alula's own.", metavar="PATH"
        ),
    ] = None,
    machine: whatif_options.Machine = None,
    gpu: whatif_options.Gpus = None,
    driver: whatif_options.Driver = None,
    links: whatif_options.Links = None,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            help="Run a probe in a child process: import, kernel, p2p, collective, or all; may be "
            "repeated. Without it no code of the environment runs.",
            metavar="NAME",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Probe GPUs that somebody computes on.")
    ] = False,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="Also look for kernels that were compiled to nothing for these GPUs; takes up to "
            "a minute.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON, to be saved.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The report as Markdown, for an issue.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Keep names, paths and identifiers that are left out.")
    ] = False,
) -> None:
    """What this machine and its software really support, from evidence.

    GPUs, links, driver, toolkits, and what is inside the binaries of the installed packages.
    Nothing is sent anywhere. Exits with 1 where a feature that was asked for has a closed gate, or
    where a probe did not pass.
    """
    from alula.diagnosis.doctor import Question, examine
    from alula.machine.whatif import WhatIf

    if json and markdown:
        raise UsageError(
            "both --json and --markdown were given",
            "a report has one form",
            "leave out one of them",
        )
    question = Question(
        features=features or (),
        environment=env,
        what_if=WhatIf(machine, gpu or (), driver, links),
        probes=probe or (),
        force=force,
        kernels=kernels,
    )
    # Probes announce themselves, each on a line of its own.
    telling = nullcontext() if probe else progress_bar("examining the machine and its software", 0)
    with telling:
        report = examine(question, os.environ, scan_cache(), _announce)
    _print(report.to_json(), json, markdown, full)
    if _closed(report.to_json()):
        raise typer.Exit(_CLOSED)


def _print(report: dict[str, Any], as_json: bool, markdown: bool, full: bool) -> None:
    from alula.machine.privacy import redacted

    if not full and (as_json or markdown):
        report = redacted(report)
    if as_json:
        print_json(report)
    elif markdown:
        from alula.cli.doctor_markdown import as_markdown

        print_text(as_markdown(report))
    else:
        from alula.cli.doctor_tables import print_report

        print_report(report)


def _closed(report: dict[str, Any]) -> bool:
    chains = report["features"].values()
    closed = any(gate["verdict"] == "closed" for chain in chains for gate in chain)
    return closed or any(probe["ending"] not in ("passed", "not run") for probe in report["probes"])


def _announce(name: str) -> None:
    messages().print(f"probing: {name} …", style="dim")


def scan_cache() -> Path | None:
    """Where scans are kept; a doctor whose cache cannot be written works without one."""
    # No home folder is a RuntimeError; Windows has none of the locks that the cache's folder uses.
    with suppress(MachineError, RuntimeError, ImportError):
        from alula.models.home import cache_folder

        return cache_folder("doctor") / "scans.json"
    return None
