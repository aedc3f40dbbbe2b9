"""`alula demo`: the main job on real prompts in about a minute, and what speculation gained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from alula.bench.compare import compare, verdict
from alula.bench.workloads import WORKLOADS, select
from alula.cli import options
from alula.cli.answers import summary
from alula.cli.console import print_dim, print_text, progress_bar
from alula.cli.session import open_llm
from alula.sampling.params import SamplingParams
from alula.speculation.shipped import shipped

if TYPE_CHECKING:
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


def demo(model: options.Model = "smollm2", device: options.Device = "auto") -> None:
    """Answer a few prompts with speculation, then show what it gained on this machine."""
    llm = open_llm(model, device=device, max_sequences=1, max_length=1024)
    print_dim([f"{llm.model.source.name} on {llm.model.decoder.device}", *llm.notes])
    for prompt in _PROMPTS:
        _show(llm, prompt)
    if not _show_gain(llm, shipped(model)):
        raise typer.Exit(1)


def _show(llm: LLM, prompt: str) -> None:
    def stream(_request: Request, delta: Delta) -> None:
        sys.stdout.write(delta.text)
        sys.stdout.flush()

    print_text(f"\n› {prompt}\n", style="bold")
    params = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS)
    outputs = llm.chat([{"role": "user", "content": prompt}], params, on_delta=stream)
    print_text("")
    print_dim([summary(outputs, outputs[0].seconds, sampled=False)])


def _show_gain(llm: LLM, drafter: Path | None) -> bool:
    """Plain against speculation as it is by default; whether their tokens are the same."""
    from alula.bench.decode import Plan, measure
    from alula.cli.tables import print_comparison

    plan = Plan(
        select(_KINDS, prompts_per_kind=2),
        max_tokens=_MAX_TOKENS,
        repeats=2,
        speculation=("auto",),
        drafter=drafter,
    )
    print_text("\nPlain decoding and speculation in turns on the same prompts …\n")
    comparison = compare(measure(llm.model, plan, progress_bar))
    print_text(verdict(comparison), style="bold")
    print_text("")
    print_comparison(comparison)
    return comparison.identical
