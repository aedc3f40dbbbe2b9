"""`alula bench decode --shape`: rounds of a decoder with random weights. `alula bench kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from alula.cli import options
from alula.cli.console import print_json, print_text, progress_bar
from alula.cli.session import opening
from alula.errors import UsageError

_PANEL = "A bare shape"
_OF_A_SHAPE = ("random_weights", "batch", "context_tokens", "simulate_acceptance", "profile")
_OF_A_MODEL = ("model", "drafter", "kinds", "prompts_per_kind", "max_tokens", "threads")

Shape = Annotated[
    str | None,
    typer.Option(
        help="Measure rounds of a shape instead of a model: llama-8b, smollm2, or the path of a "
        "config.json, its folder or a .gguf file.",
        metavar="SHAPE",
        rich_help_panel=_PANEL,
    ),
]
RandomWeights = Annotated[
    bool,
    typer.Option(
        "--random-weights", help="The weights of --shape: times alone.", rich_help_panel=_PANEL
    ),
]
Batch = Annotated[
    int, typer.Option(help="Sequences side by side.", metavar="N", rich_help_panel=_PANEL)
]
Context = Annotated[
    int,
    typer.Option(
        "--context", help="Tokens before the first round.", metavar="N", rich_help_panel=_PANEL
    ),
]
SimulateAcceptance = Annotated[
    str | None,
    typer.Option(
        help="Force how much of a draft is accepted, by depth: for timing, the tokens are wrong.",
        metavar="P,…",
        rich_help_panel=_PANEL,
    ),
]
Profile = Annotated[
    bool,
    typer.Option(
        "--profile",
        help="Take one round apart: time by kind of kernel. With --out as SVG, too.",
        rich_help_panel=_PANEL,
    ),
]


class Asked(NamedTuple):
    """The options of `bench decode` that a bare shape takes."""

    shape: str
    speculation: Sequence[str] | None
    random_weights: bool
    batch: int
    context_tokens: int
    simulate_acceptance: str | None
    profile: bool
    repeats: int
    device: str
    dtype: str
    json: bool
    out: Path | None


def refuse_foreign(call: typer.Context, shape: str | None) -> None:
    """Raise UsageError for an option that the other kind of measurement would have used."""
    foreign = _OF_A_SHAPE if shape is None else _OF_A_MODEL
    for option in call.command.params:
        source = call.get_parameter_source(option.name or "")
        if option.name not in foreign or source is None or source.name != "COMMANDLINE":
            continue
        name = option.opts[0] if option.opts[0].startswith("-") else "MODEL"
        raise UsageError(
            f"{name} has no effect {'without' if shape is None else 'with'} --shape",
            "a model is measured on prompts, a bare shape by rounds of random tokens",
            f"leave {name} out, or {'add' if shape is None else 'leave out'} --shape",
        )


def decode_shape(asked: Asked) -> None:
    """Measure rounds of a bare shape and print what was found."""
    with opening(asked.shape):
        from alula.bench import rounds_command
        from alula.bench.rounds import RoundPlan
        from alula.bench.shapes import subject
        from alula.bench.simulated import parse_rates

    if not asked.random_weights:
        raise rounds_command.bare_shape(asked.shape)
    rates = asked.simulate_acceptance
    plan = RoundPlan(
        subject=subject(asked.shape),
        speculation=tuple(asked.speculation or rounds_command.DEFAULT_SHAPES),
        batch=asked.batch,
        context=asked.context_tokens,
        simulated=None if rates is None else parse_rates(rates),
        profile=asked.profile,
        repeats=asked.repeats,
    )
    say = _nothing if asked.json else print_text
    record = rounds_command.run(
        plan, say, device=asked.device, dtype=asked.dtype, out=asked.out, progress=progress_bar
    )
    if asked.json:
        print_json(record)


def kernels(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="llama-8b, smollm2 or a path; may be repeated. By default both.", metavar="SHAPE"
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Numbers of rows, with commas between them.", metavar="N,…")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Find the fastest tiles by rows and write the architecture's table."
        ),
    ] = False,
    drafter: Annotated[
        bool, typer.Option("--drafter", help="Measure a drafter's matrices too.")
    ] = False,
    json: options.Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a result file; with --tune the table, by default where alula reads it.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Linears of a shape by rows against cuBLAS, and attention; on a GPU."""
    with opening("torch"):
        from alula.bench import kernels_command as command

    if rows is not None and tune:
        raise UsageError(
            "--rows has no effect with --tune",
            "the tuner has its own buckets of rows",
            "leave --rows out, or --tune",
        )
    asked = command.Asked(
        shapes=shape or command.Asked.shapes,
        rows=command.ROWS if rows is None else command.parse_rows(rows),
        tune=tune,
        drafter=drafter,
        out=out,
    )
    record = command.run(asked, _nothing if json else print_text)
    if json:
        print_json(record)


def _nothing(_line: str) -> None:
    """With --json nothing but JSON is written."""
