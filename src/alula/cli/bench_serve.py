"""`alula bench serve`: load on a running server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from alula.bench import results
from alula.bench.serve import Load, Objectives, Target, run, served_model
from alula.bench.serve_report import summarise
from alula.bench.workloads import WORKLOADS, select
from alula.cli import options
from alula.cli.console import print_json, print_text, progress_bar
from alula.errors import UsageError


def serve(
    url: Annotated[str, typer.Argument(help="The server's address.", metavar="URL")],
    concurrency: Annotated[
        str,
        typer.Option(help="Requests at a time, with commas between several runs.", metavar="N,…"),
    ] = "1,4,16",
    rate: Annotated[
        str | None,
        typer.Option(
            help="Arrivals a second instead of a concurrency, with commas between several runs.",
            metavar="R,…",
        ),
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests of each run.", metavar="N", min=1)] = 32,
    kinds: Annotated[
        str | None,
        typer.Option(
            help=f"Kinds of text, with commas between them: {', '.join(WORKLOADS)}.",
            metavar="KINDS",
        ),
    ] = None,
    max_tokens: options.MaxTokens = 64,
    temperature: options.Temperature = 0.0,
    first_objective: Annotated[
        float, typer.Option(help="Seconds to the first token of a good request.", metavar="S")
    ] = 1.0,
    token_objective: Annotated[
        float, typer.Option(help="Seconds per further token of a good request.", metavar="S")
    ] = 0.1,
    api_key: Annotated[
        str | None, typer.Option(help="The server's key.", metavar="KEY", envvar="ALULA_API_KEY")
    ] = None,
    json: options.Json = False,
    out: options.ResultFile = None,
) -> None:
    """Measure a running server: latency, throughput, and requests that keep their objectives.

    Each run sends the same prompts. Exits with 1 where a request fails.
    """
    loads = _loads(concurrency, rate)
    named = [kind.strip() for kind in kinds.split(",")] if kinds else []
    workloads = select(named)
    if out is not None:
        results.check_writable(out)
    model = served_model(url, api_key)
    target = Target(url, model, api_key, max_tokens, temperature)
    objectives = Objectives(first_objective, token_objective)
    found = []
    for load in loads:
        summary = {
            "load": str(load),
            **summarise(run(target, load, workloads, requests, progress_bar), objectives),
        }
        found.append(summary)
        if not json:
            _print(summary)
    settings = {"url": url, "model": model, "requests": requests, "max_tokens": max_tokens}
    record = results.record("bench serve", settings, found)
    if out is not None:
        results.write(out, record)
    if json:
        print_json(record)
    if any(summary["failed"] for summary in found):
        raise typer.Exit(1)


def _loads(concurrency: str, rate: str | None) -> list[Load]:
    if rate is not None:
        return [Load(None, _positive("--rate", text, float)) for text in rate.split(",")]
    return [
        Load(int(_positive("--concurrency", text, int)), None) for text in concurrency.split(",")
    ]


def _positive(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise UsageError(
            f"{name} {text!r} is not understood",
            "it is a positive number, or several with commas between them",
            f"write for example {name} 1,4",
        )
    return value


def _print(summary: dict[str, Any]) -> None:
    print_text(
        f"{summary['load']}: {summary['tokens_per_second']:.1f} tok/s, "
        f"{summary['requests_per_second']:.2f} requests/s, "
        f"{summary['goodput_per_second']:.2f} of them good, {summary['failed']} failed"
    )
    for name, shown in (("first_seconds", "first token"), ("token_seconds", "per token")):
        values = [f"{share} {_milliseconds(value)}" for share, value in summary[name].items()]
        print_text(f"  {shown}: {', '.join(values)}", style="dim")
    for kind, own in summary["by_kind"].items():
        tau = own["tokens_per_round"]
        shown = "" if tau is None else f", τ {tau:.2f}"
        print_text(f"  {kind}: {own['tokens']} tokens{shown}", style="dim")
    for error in summary["errors"]:
        print_text(f"  {error}", style="dim")


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"
