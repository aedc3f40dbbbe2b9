"""The options of `alula estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MACHINE, _LAYOUT, _LOAD, _SPECULATION = "The machine", "The layout", "The load", "Speculation"
_OUTPUT = "The answer"
MOST_ROWS = 1 << 16

Model = Annotated[
    str | None,
    typer.Argument(
        help="A known name (kimi-k2.5, llama-3.1-8b, …), a config.json or its folder, or a "
        ".gguf file.",
        metavar="MODEL",
    ),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        help="Fit the constants to measured points.",
        metavar="FILE.json",
        rich_help_panel=_MACHINE,
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        help="GPUs the model is spread over. By default all.",
        metavar="N",
        min=1,
        max=1024,
        rich_help_panel=_LAYOUT,
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        help="tp, replicated-attention, ep or ep-all-to-all.",
        metavar="NAME",
        rich_help_panel=_LAYOUT,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="All weights in another format: bf16, fp8, int8, nvfp4, int4-g32, …",
        metavar="FORMAT",
        rich_help_panel=_LAYOUT,
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        help="Attention projections in another format: fp8, int8, int4-g32, …",
        metavar="FORMAT",
        rich_help_panel=_LAYOUT,
    ),
]
AllReduce = Annotated[
    str | None,
    typer.Option(
        help="A time with its unit (60us), a measured table's name, table, or link for the "
        "least that the link allows.",
        metavar="TIME|NAME",
        rich_help_panel=_LAYOUT,
    ),
]
Rows = Annotated[
    str,
    typer.Option(help="Rows of each sequence to price.", metavar="N,N,…", rich_help_panel=_LOAD),
]
Context = Annotated[
    int,
    typer.Option(
        help="Tokens before each row.",
        metavar="TOKENS",
        min=0,
        max=1 << 24,
        rich_help_panel=_LOAD,
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        help="Sequences side by side.",
        metavar="N",
        min=1,
        max=MOST_ROWS,
        rich_help_panel=_LOAD,
    ),
]
Draft = Annotated[
    str,
    typer.Option(
        help="chain:K or tree:DEPTHxWIDTH:NODES.",
        metavar="SHAPE",
        rich_help_panel=_SPECULATION,
    ),
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        help="Conditional, by position: 0.6,0.5,0.4.",
        metavar="P,P,…",
        rich_help_panel=_SPECULATION,
    ),
]
Survival = Annotated[
    str | None,
    typer.Option(
        help="Cumulative, by position: 0.6,0.3,0.12.",
        metavar="P,P,…",
        rich_help_panel=_SPECULATION,
    ),
]
Tau = Annotated[
    float | None,
    typer.Option(
        help="Tokens a round emits with this draft, the bonus token included.",
        metavar="X",
        rich_help_panel=_SPECULATION,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="What the host adds to a round: 4ms. By default what is on record.",
        metavar="TIME",
        rich_help_panel=_SPECULATION,
    ),
]
Check = Annotated[
    Path | None,
    typer.Option(
        help="Check claims about a machine against each other instead.",
        metavar="FILE.toml",
        rich_help_panel=_OUTPUT,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        help="Write a page that needs nothing else.",
        metavar="FILE",
        rich_help_panel=_OUTPUT,
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option(help="Write the break-even chart.", metavar="FILE", rich_help_panel=_OUTPUT),
]
Markdown = Annotated[
    bool,
    typer.Option("--markdown", help="Write Markdown to standard output.", rich_help_panel=_OUTPUT),
]
