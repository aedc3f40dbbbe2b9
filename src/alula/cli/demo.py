"""`alula demo`: the main job on real prompts in about a minute, and what speculation gained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from alula.bench import results
from alula.bench.compare import Comparison, compare, verdict
from alula.bench.workloads import WORKLOADS, select
from alula.cli import options
from alula.cli.answers import summary
from alula.cli.bench import as_json, settings
from alula.cli.console import print_dim, print_json, print_text, progress_bar
from alula.cli.session import open_llm
from alula.sampling.params import SamplingParams
from alula.speculation.shipped import shipped

if TYPE_CHECKING:
    from alula.bench.decode import Plan
    from alula.engine.events import Request
    from alula.engine.llm import LLM
    from alula.engine.outputs import Delta

_KINDS = ("rewriting", "code", "chat")
_MAX_TOKENS = 64
_PROMPTS = (
    "In one sentence: what is a wing?",
    "List three birds that cannot fly.",
    "What is 12 times 12? Explain briefly.",
    WORKLOADS["rewriting"][0],
)


def demo(
    model: options.Model = "smollm2",
    device: options.Device = "auto",
    json: options.Json = False,
    out: options.ResultFile = None,
) -> None:
    """Answer a few prompts with speculation, then show what it gained on this machine."""
    if out is not None:
        results.check_writable(out)
    llm = open_llm(model, device=device, max_sequences=1, max_length=1024)
    if not json:
        print_dim([f"{llm.model.source.name} on {llm.model.decoder.device}", *llm.notes])
    answers = [_answer(llm, prompt, silent=json) for prompt in _PROMPTS]
    plan, comparison = _gain(llm, shipped(model), silent=json)
    told = {"notes": llm.notes, "answers": answers, **as_json(comparison)}
    record = results.record("demo", settings(llm.model, plan), told)
    if out is not None:
        results.write(out, record)
    if json:
        print_json(record)
    if not comparison.identical:
        raise typer.Exit(1)


def _answer(llm: LLM, prompt: str, *, silent: bool) -> dict[str, Any]:
    """Answer one prompt, shown while it is written unless `silent`."""

    def stream(_request: Request, delta: Delta) -> None:
        sys.stdout.write(delta.text)
        sys.stdout.flush()

    if not silent:
        print_text(f"\n› {prompt}\n", style="bold")
    params = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS)
    message = [{"role": "user", "content": prompt}]
    outputs = llm.chat(message, params, on_delta=None if silent else stream)
    told = summary(outputs, outputs[0].seconds, sampled=False)
    if not silent:
        print_text("")
        print_dim([told])
    return {"prompt": prompt, "text": outputs[0].outputs[0].text, "summary": told}


def _gain(llm: LLM, drafter: Path | None, *, silent: bool) -> tuple[Plan, Comparison]:
    """Plain against speculation as it is by default."""
    from alula.bench.decode import Plan, measure
    from alula.cli.tables import print_comparison

    plan = Plan(
        select(_KINDS, prompts_per_kind=2),
        max_tokens=_MAX_TOKENS,
        repeats=2,
        speculation=("auto",),
        drafter=drafter,
    )
    if not silent:
        print_text("\nPlain decoding and speculation in turns on the same prompts …\n")
    comparison = compare(measure(llm.model, plan, progress_bar))
    if not silent:
        print_text(verdict(comparison), style="bold")
        print_text("")
        print_comparison(comparison)
    return plan, comparison
