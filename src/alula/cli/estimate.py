"""`alula estimate`: what a step must cost, and what speculation must reach to pay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli import options, whatif_options
from alula.cli.console import print_json
from alula.errors import MachineError, UsageError

if TYPE_CHECKING:
    from alula.cost.telling.document import Document

_MACHINE, _LAYOUT, _LOAD, _SPECULATION = "The machine", "The layout", "The load", "Speculation"
_OUTPUT = "The answer"
_MOST_ROWS = 1 << 16
_ANSWER = ("check", "html", "svg", "markdown", "json")


def estimate(
    call: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A known name (kimi-k2.5, llama-3.1-8b, …), a config.json or its folder, or a "
            ".gguf file.",
            metavar="MODEL",
        ),
    ] = None,
    machine: whatif_options.Machine = None,
    gpu: whatif_options.Gpus = None,
    driver: whatif_options.Driver = None,
    links: whatif_options.Links = None,
    tp: Annotated[
        int | None,
        typer.Option(
            help="GPUs the model is spread over. By default all.",
            metavar="N",
            min=1,
            max=1024,
            rich_help_panel=_LAYOUT,
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="tp, replicated-attention, ep or ep-all-to-all.",
            metavar="NAME",
            rich_help_panel=_LAYOUT,
        ),
    ] = "tp",
    weights: Annotated[
        str | None,
        typer.Option(
            help="All weights in another format: bf16, fp8, int8, nvfp4, int4-g32, …",
            metavar="FORMAT",
            rich_help_panel=_LAYOUT,
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Attention projections in another format: fp8, int8, int4-g32, …",
            metavar="FORMAT",
            rich_help_panel=_LAYOUT,
        ),
    ] = None,
    allreduce: Annotated[
        str | None,
        typer.Option(
            help="A time with its unit (60us), a measured table's name, table, or link for the "
            "least that the link allows.",
            metavar="TIME|NAME",
            rich_help_panel=_LAYOUT,
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            help="Rows of each sequence to price.", metavar="N,N,…", rich_help_panel=_LOAD
        ),
    ] = "1,2,4,8,16",
    context: Annotated[
        int,
        typer.Option(
            help="Tokens before each row.",
            metavar="TOKENS",
            min=0,
            max=1 << 24,
            rich_help_panel=_LOAD,
        ),
    ] = 1024,
    batch: Annotated[
        int,
        typer.Option(
            help="Sequences side by side.",
            metavar="N",
            min=1,
            max=_MOST_ROWS,
            rich_help_panel=_LOAD,
        ),
    ] = 1,
    draft: Annotated[
        str,
        typer.Option(
            help="chain:K or tree:DEPTHxWIDTH:NODES.",
            metavar="SHAPE",
            rich_help_panel=_SPECULATION,
        ),
    ] = "chain:3",
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Conditional, by position: 0.6,0.5,0.4.",
            metavar="P,P,…",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    survival: Annotated[
        str | None,
        typer.Option(
            help="Cumulative, by position: 0.6,0.3,0.12.",
            metavar="P,P,…",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Tokens a round emits with this draft, the bonus token included.",
            metavar="X",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="What the host adds to a round: 4ms. By default what is on record.",
            metavar="TIME",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Fit the constants to measured points.",
            metavar="FILE.json",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Check claims about a machine against each other instead.",
            metavar="FILE.toml",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page that needs nothing else.",
            metavar="FILE",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Write the break-even chart.", metavar="FILE", rich_help_panel=_OUTPUT),
    ] = None,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Write Markdown to standard output.", rich_help_panel=_OUTPUT
        ),
    ] = False,
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
    if not found or (whole and not 1 <= min(found) <= max(found) <= _MOST_ROWS):
        kind = f"whole numbers from 1 to {_MOST_ROWS}" if whole else "numbers"
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
