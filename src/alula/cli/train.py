"""`alula train`: a drafter for a model, from the model alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli import options
from alula.cli.console import messages, progress_bar
from alula.errors import UsageError

if TYPE_CHECKING:
    pass

_STAGES = ("check", "synthesise", "fit", "evaluate", "export")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_DATA, _FIT, _RUN = "Data", "Fitting", "The run"


def train(
    model: options.Model,
    out: Annotated[
        Path,
        typer.Option(help="The folder of the run.", metavar="DIR", rich_help_panel=_RUN),
    ],
    tokens: Annotated[
        str,
        typer.Option(
            help="Answer tokens the model writes to learn from, for example 10M.",
            metavar="N",
            rich_help_panel=_DATA,
        ),
    ] = "10M",
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts of your own, which the model answers: JSON Lines of prompt or messages.",
            metavar="FILE",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_length: Annotated[
        int,
        typer.Option(
            help="Tokens of a conversation; also how far back the drafter will look.",
            metavar="N",
            rich_help_panel=_DATA,
        ),
    ] = 1024,
    together: Annotated[
        int,
        typer.Option(
            help="Conversations written side by side.", metavar="N", rich_help_panel=_DATA
        ),
    ] = 8192,
    draft_vocab: Annotated[
        int,
        typer.Option(
            help="Tokens the drafter can propose, the most frequent ones.",
            metavar="N",
            rich_help_panel=_FIT,
        ),
    ] = 8192,
    steps: Annotated[
        int,
        typer.Option(help="Steps the network is unrolled.", metavar="J", rich_help_panel=_FIT),
    ] = 5,
    epochs: Annotated[
        int,
        typer.Option(help="Times all data is gone through.", metavar="N", rich_help_panel=_FIT),
    ] = 8,
    batch_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of a batch; lower it where memory is short.",
            metavar="N",
            rich_help_panel=_FIT,
        ),
    ] = 16384,
    rate: Annotated[
        float, typer.Option(help="Learning rate.", metavar="X", rich_help_panel=_FIT)
    ] = 3e-3,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Begin with the weights of this drafter.", metavar="PATH", rich_help_panel=_FIT
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the whole run.", metavar="SEED", rich_help_panel=_RUN)
    ] = 0,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Run this stage alone: {', '.join(_STAGES)}. May be repeated.",
            metavar="STAGE",
            rich_help_panel=_RUN,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a run.", rich_help_panel=_RUN),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Train an EAGLE-3 drafter for a model on text that the model writes itself.

    In stages: check overfits 32 answers and decodes them, which takes a minute on a GPU and finds
    what is wired wrongly; synthesise, fit, evaluate, export. Each may be interrupted and resumed.
    """
    stages = _stages(stage)
    with _opening(model):
        from alula.engine.llm import device_named
        from alula.models.load import load
        from alula.training.run import Recipe, Run

    recipe = Recipe(
        model=model,
        tokens=parse_count(tokens),
        prompts=None if prompts is None else str(prompts),
        draft_vocab=draft_vocab,
        steps=steps,
        epochs=epochs,
        batch_tokens=batch_tokens,
        rate=rate,
        max_length=max_length,
        seed=seed,
        together=together,
    )
    loaded = load(model, device_named(device), dtype, progress_bar)
    run = Run(recipe, out, loaded, progress_bar, _say, stages=stages, resume=resume, start=start)
    run.all()


def parse_count(text: str) -> int:
    """A whole number with K, M or G for thousands, millions and thousand millions."""
    digits = text.strip().upper().rstrip("KMG")
    unit = text.strip().upper()[len(digits) :]
    try:
        number = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        number = 0.5
    if number < 1 or number != int(number):
        raise UsageError(
            f"--tokens {text!r} is not understood",
            "it is a whole number, with K, M or G behind it for thousands and millions",
            "write for example --tokens 10M",
        )
    return int(number)


def _stages(asked: list[str] | None) -> list[str]:
    for name in asked or ():
        if name not in _STAGES:
            raise UsageError(
                f"there is no stage {name!r}",
                f"the stages are {', '.join(_STAGES)}",
                "name one of these, or leave --stage out to run all",
            )
    return [name for name in _STAGES if not asked or name in asked]


def _say(line: str) -> None:
    messages().print(line, soft_wrap=True)


@contextmanager
def _opening(model: str) -> Iterator[None]:
    """Importing torch takes seconds, so something should move."""
    with messages().status(f"opening {model}"):
        yield
