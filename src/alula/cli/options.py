"""Options that several commands take, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "The model"
_SPECULATION = "Speculation"
_SAMPLING = "Sampling"
_SIZES = "Sizes"

Model = Annotated[
    str,
    typer.Argument(
        help="A folder in Hugging Face layout, a .gguf file, a Hugging Face repository "
        "(organisation/name) or a built-in name.",
        metavar="MODEL",
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu or cuda.", metavar="DEVICE", rich_help_panel=_MODEL)
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16. On the CPU auto is bfloat16 where the processor "
        "multiplies it, else float32.",
        metavar="DTYPE",
        rich_help_panel=_MODEL,
    ),
]

Speculation = Annotated[
    str,
    typer.Option(
        help="off, ngram (prompt lookup), auto, chain:K or tree:DEPTHxWIDTH:NODES. "
        "It never changes the tokens.",
        metavar="SHAPE",
        rich_help_panel=_SPECULATION,
    ),
]
Drafter = Annotated[
    Path | None,
    typer.Option(
        help="The folder of an EAGLE-3 drafter. smollm2 comes with one.",
        metavar="PATH",
        rich_help_panel=_SPECULATION,
    ),
]

MaxTokens = Annotated[int, typer.Option(help="The most tokens of an answer.", metavar="N")]
Temperature = Annotated[
    float,
    typer.Option(help="0 takes the most likely token.", metavar="T", rich_help_panel=_SAMPLING),
]
TopP = Annotated[
    float,
    typer.Option(
        help="Keep the likeliest tokens until their mass reaches P.",
        metavar="P",
        rich_help_panel=_SAMPLING,
    ),
]
TopK = Annotated[
    int,
    typer.Option(
        help="Keep the K likeliest tokens; 0 keeps all.", metavar="K", rich_help_panel=_SAMPLING
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        help="Keep tokens at least P times as likely as the likeliest.",
        metavar="P",
        rich_help_panel=_SAMPLING,
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        help="Scales down the logits of tokens in prompt and answer; 1 is off.",
        metavar="X",
        rich_help_panel=_SAMPLING,
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        help="Subtracted from the logit of every token in the answer.",
        metavar="X",
        rich_help_panel=_SAMPLING,
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        help="Subtracted from a token's logit once per occurrence in the answer.",
        metavar="X",
        rich_help_panel=_SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Makes sampling repeatable. Without it one is drawn and named.",
        metavar="SEED",
        rich_help_panel=_SAMPLING,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        help="End the answer before this text. May be repeated.",
        metavar="TEXT",
        rich_help_panel=_SAMPLING,
    ),
]

CacheTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens whose keys are kept. By default a share of the free memory.",
        metavar="N",
        rich_help_panel=_SIZES,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Tokens of prompt and answer together. By default what model and cache allow.",
        metavar="N",
        rich_help_panel=_SIZES,
    ),
]
MaxSequences = Annotated[
    int,
    typer.Option(
        help="Answers that are written side by side.", metavar="N", rich_help_panel=_SIZES
    ),
]

Graphs = Annotated[
    bool,
    typer.Option(
        "--graphs/--no-graphs",
        help="On a GPU: capture rounds as CUDA graphs, which takes memory of its own.",
        rich_help_panel=_SIZES,
    ),
]

Json = Annotated[
    bool, typer.Option("--json", help="Write JSON to standard output, and nothing else.")
]
ResultFile = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Write a result file with machine, versions and date.", metavar="FILE"
    ),
]
