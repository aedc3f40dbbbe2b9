"""`alula bench`: what this machine gains by speculation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alula.bench import results
from alula.bench.compare import Comparison, compare, verdict
from alula.bench.workloads import WORKLOADS, select
from alula.cli import bench_serve, bench_shape, options
from alula.cli.console import print_dim, print_help_alone, print_json, print_text, progress_bar
from alula.cli.session import load_model, opening
from alula.errors import UsageError
from alula.speculation.shipped import shipped

if TYPE_CHECKING:
    from alula.bench.decode import Plan
    from alula.models.load import LoadedModel

_DIFFERENT = 1
_DRAFTER_SHAPES = ("chain:4", "auto")

app = typer.Typer()
app.command("serve")(bench_serve.serve)
app.command("kernels")(bench_shape.kernels)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    """Measure what speculation gains on this machine, and what a server gives."""
    print_help_alone(context)


@app.command("decode")
def decode(
    context: typer.Context,
    model: options.Model = "smollm2",
    speculation: Annotated[
        list[str] | None,
        typer.Option(
            help="A shape to compare with plain decoding; may be repeated. By default ngram, and "
            f"{' and '.join(_DRAFTER_SHAPES)} where there is a drafter.",
            metavar="SHAPE",
        ),
    ] = None,
    drafter: options.Drafter = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help=f"Kinds of text, with commas between them: {', '.join(WORKLOADS)}.",
            metavar="KINDS",
        ),
    ] = None,
    prompts_per_kind: Annotated[int, typer.Option(help="Prompts of each kind.", metavar="N")] = 3,
    max_tokens: options.MaxTokens = 64,
    repeats: Annotated[
        int, typer.Option(help="Times that everything is measured.", metavar="N")
    ] = 3,
    threads: Annotated[
        int | None, typer.Option(help="Threads that torch computes with.", metavar="N")
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    shape: bench_shape.Shape = None,
    random_weights: bench_shape.RandomWeights = False,
    batch: bench_shape.Batch = 1,
    context_tokens: bench_shape.Context = 512,
    simulate_acceptance: bench_shape.SimulateAcceptance = None,
    profile: bench_shape.Profile = False,
    json: options.Json = False,
    out: options.ResultFile = None,
) -> None:
    """Plain decoding against speculation, interleaved on the same prompts, by kind of text.

    Greedy, one answer at a time, a warm-up left out. Exits with 1 where the tokens differ. With
    --shape: what rounds cost, of random weights.
    """
    bench_shape.refuse_foreign(context, shape)
    if shape is not None:
        bench_shape.decode_shape(
            bench_shape.Asked(
                shape=shape,
                speculation=speculation,
                random_weights=random_weights,
                batch=batch,
                context_tokens=context_tokens,
                simulate_acceptance=simulate_acceptance,
                profile=profile,
                repeats=repeats,
                device=device,
                dtype=dtype,
                json=json,
                out=out,
            )
        )
        return
    with opening(model):
        from alula.bench.decode import Plan, measure, use_threads

    drafter = drafter or shipped(model)
    plan = Plan(
        workloads=select(_split(kinds), prompts_per_kind),
        max_tokens=max_tokens,
        repeats=repeats,
        speculation=tuple(speculation or _default_shapes(drafter)),
        drafter=drafter,
    )
    if out is not None:
        results.check_writable(out)
    use_threads(threads)
    loaded = load_model(model, device, dtype)
    comparison = compare(measure(loaded, plan, progress_bar))
    record = results.record("bench decode", settings(loaded, plan), as_json(comparison))
    if out is not None:
        results.write(out, record)
    if json:
        print_json(record)
    else:
        _print(comparison, loaded)
    if not comparison.identical:
        raise typer.Exit(_DIFFERENT)


def _split(kinds: str | None) -> list[str]:
    if kinds is None:
        return []
    found = [kind.strip() for kind in kinds.split(",")]
    if not all(found):
        raise UsageError(
            f"--kinds {kinds!r} is not understood",
            "it holds an empty name",
            "write for example --kinds chat,code",
        )
    return found


def _default_shapes(drafter: Path | None) -> list[str]:
    return ["ngram"] if drafter is None else ["ngram", *_DRAFTER_SHAPES]


def _print(comparison: Comparison, model: LoadedModel) -> None:
    from alula.cli.tables import print_comparison

    print_text(verdict(comparison))
    print_text("")
    print_comparison(comparison)
    print_dim(model.notes)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison for a program, its verdict first."""
    return {
        "verdict": verdict(comparison),
        "identical": comparison.identical,
        **asdict(comparison),
    }


def settings(model: LoadedModel, plan: Plan) -> dict[str, Any]:
    """What was compared, and how."""
    import torch

    return {
        "model": model.source.name,
        "device": str(model.decoder.device),
        "dtype": str(model.decoder.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "speculation": plan.shapes,
        "drafter": None if plan.drafter is None else plan.drafter.name,
        "prompts": len(plan.workloads),
        "max_tokens": plan.max_tokens,
        "repeats": plan.repeats,
        "temperature": 0.0,
        "notes": model.notes,
    }
