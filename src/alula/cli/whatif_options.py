"""The options that ask about another machine, spelled the same in every command."""

from __future__ import annotations

from typing import Annotated

import typer

Machine = Annotated[
    str | None,
    typer.Option(
        help="Another machine: a saved report, or a count and a model as in 8x-rtx-pro-6000.",
        metavar="MACHINE",
    ),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        help="Other GPUs: a compute capability, 12.0 or 12.0x8; may be repeated.",
        metavar="CAPABILITY",
    ),
]
Driver = Annotated[
    str | None, typer.Option(help="Another driver, as in 590.48.01.", metavar="VERSION")
]
Links = Annotated[
    str | None, typer.Option(help="How the GPUs are joined: pcie or nvlink.", metavar="KIND")
]
