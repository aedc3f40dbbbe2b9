"""`alula estimate`: what a step must cost, and what speculation must reach to pay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from alula.cli import estimate_options as own
from alula.cli import options, whatif_options
from alula.cli.console import print_json
from alula.errors import MachineError, UsageError

if TYPE_CHECKING:
    from alula.cost.telling.document import Document

_ANSWER = ("check", "html", "svg", "markdown", "json")


def estimate(
    call: typer.Context,
    model: own.Model = None,
    machine: whatif_options.Machine = None,
    gpu: whatif_options.Gpus = None,
    driver: whatif_options.Driver = None,
    links: whatif_options.Links = None,
    tp: own.Ranks = None,
    layout: own.Layout = "tp",
    weights: own.Weights = None,
    attention: own.Attention = None,
    allreduce: own.AllReduce = None,
    rows: own.Rows = "1,2,4,8,16",
    context: own.Context = 1024,
    batch: own.Batch = 1,
    draft: own.Draft = "chain:3",
    acceptance: own.Acceptance = None,
    survival: own.Survival = None,
    tau: own.Tau = None,
    host: own.Host = None,
    measured: own.Measured = None,
    check: own.Check = None,
    html: own.Html = None,
    svg: own.Svg = None,
    markdown: own.Markdown = False,
    json: options.Json = False,
) -> None:
    """What a decoding step must cost on a machine, and what speculation must reach to pay.

    Arithmetic only: nothing is run, and the machine need not be this one.
    """
    if html is not None and html == svg:
        raise UsageError(
            "--html and --svg name the same file", "one would overwrite the other", "name two"
        )
    if json and markdown:
        raise UsageError(
            "--json and --markdown exclude each other", "both own standard output", "keep one"
        )
    if check is not None:
        _alone(call)
        from alula.cost.answer import answer_claims

        document = answer_claims(check)
    else:
        if model is None:
            raise _no_model()
        from alula.cost.answer import Asked, answer
        from alula.machine.whatif import WhatIf

        document = answer(
            Asked(
                model=model,
                what_if=WhatIf(machine, gpu or (), driver, links),
                ranks=tp,
                layout=layout,
                weights=weights,
                attention=attention,
                allreduce=allreduce,
                rows=tuple(int(n) for n in _numbers(rows, "--rows", whole=True)),
                context=context,
                batch=batch,
                draft=draft,
                acceptance=_numbers(acceptance, "--acceptance"),
                survival=_numbers(survival, "--survival"),
                tau=tau,
                host=host,
                measured=measured,
            )
        )
    _show(document, html, svg, markdown, json)


def _show(
    document: Document, html: Path | None, svg: Path | None, markdown: bool, json: bool
) -> None:
    if html is not None:
        from alula.cost.telling.pages import html as page

        _write(html, page(document))
    if svg is not None:
        from alula.cost.telling.document import Chart
        from alula.cost.telling.svg import chart_svg

        charts = [block for block in document.blocks if isinstance(block, Chart)]
        if not charts:
            raise UsageError(
                "there is no chart to draw",
                "it needs plain and speculative speed and the time of a verification",
                "leave --svg out, or claim all three",
            )
        _write(svg, chart_svg(charts[0]))
    if json:
        print_json({"verdict": document.verdict, **document.data, "notes": document.notes})
    elif markdown:
        from alula.cost.telling.pages import markdown as text

        typer.echo(text(document), nl=False)
    else:
        from alula.cli.documents import print_document

        print_document(document)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written", error.strerror or str(error), "name another file"
        ) from error


def _numbers(text: str | None, flag: str, *, whole: bool = False) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        found = tuple(int(part) if whole else float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or (whole and not 1 <= min(found) <= max(found) <= own.MOST_ROWS):
        kind = f"whole numbers from 1 to {own.MOST_ROWS}" if whole else "numbers"
        raise UsageError(
            f"{flag} {text!r} is not understood",
            f"it is {kind} with commas between them",
            f"write for example {flag} {'1,4,16' if whole else '0.6,0.5,0.4'}",
        )
    return found


def _alone(call: typer.Context) -> None:
    """The file of claims says it all: beside it stands only what shapes the answer."""
    for option in call.command.params:
        source = call.get_parameter_source(option.name or "")
        if option.name in _ANSWER or source is None or source.name != "COMMANDLINE":
            continue
        name = option.opts[0] if option.opts[0].startswith("-") else "MODEL"
        raise UsageError(
            f"--check and {name} exclude each other",
            "a file of claims says itself what is claimed, of which model and machine",
            "write it in the file's [setting], or estimate without --check and compare",
        )


def _no_model() -> UsageError:
    from alula.cost.reading.model import known_models

    return UsageError(
        "no model was named",
        "an estimate is for a model, or of claims (--check)",
        f"name a config.json, a .gguf file, or {', '.join(known_models())}",
    )
