"""Plain decoding against each speculation shape, interleaved on the same prompts.

A machine's speed drifts while it is measured. So every prompt is answered by all contenders
before the next one, and their order turns around from one answer to the next (A B B A …).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from alula.bench.compare import PLAIN, Run
from alula.bench.workloads import Workload
from alula.engine.core import Engine
from alula.engine.events import LaunchRecord
from alula.engine.heap import frozen_heap
from alula.engine.outputs import RequestOutput
from alula.engine.settings import Settings
from alula.engine.speculator import asked, needs_drafter, speculator
from alula.errors import UsageError
from alula.models.load import LoadedModel
from alula.models.progress import Progress, silent
from alula.sampling.params import SamplingParams

_OFF = "off"
_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Plan:
    """What is measured. Raises UsageError for counts below 1."""

    workloads: Sequence[Workload]
    max_tokens: int = 64
    repeats: int = 3
    speculation: Sequence[str] = ("ngram",)
    """Options as `--speculation` takes them; plain decoding is always measured."""
    drafter: Path | None = None
    """Used by the shapes that need one: chain:K, tree:… and auto."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "repeats"):
            _at_least_one(name, getattr(self, name))
        for option in self.shapes:
            asked(option, self.used_drafter(option))

    def used_drafter(self, option: str) -> Path | None:
        """The drafter where `option` needs one."""
        return self.drafter if needs_drafter(option) else None

    @property
    def shapes(self) -> list[str]:
        """The options of all contenders, plain first, each once."""
        return list(dict.fromkeys((_OFF, *self.speculation)))


class Contender(NamedTuple):
    """One speculation shape with an engine of its own over the shared model."""

    shape: str
    engine: Engine
    launches: list[LaunchRecord]
    """What the engine's launches took, filled by its observer."""


def use_threads(count: int | None) -> None:
    """Let torch compute with `count` threads; None leaves its own choice."""
    if count is not None:
        _at_least_one("threads", count)
        torch.set_num_threads(count)


def measure(model: LoadedModel, plan: Plan, progress: Progress = silent) -> list[Run]:
    """Answer every prompt with every contender, `repeats` times, greedily.

    Raises UsageError where a shape is not understood or a prompt does not fit the model.
    """
    prompts = [chat_ids(model, workload.prompt) for workload in plan.workloads]
    contenders = _contenders(model, plan, longest=max(map(len, prompts)))
    for contender in contenders:
        _answer(contender, prompts[0], min(plan.max_tokens, _WARM_UP_TOKENS))
    runs = []
    steps = plan.repeats * len(prompts) * len(contenders)
    with frozen_heap(), progress("measuring", steps) as task:
        for repeat in range(plan.repeats):
            for number, workload in enumerate(plan.workloads):
                turn = 1 if (repeat + number) % 2 == 0 else -1
                for contender in contenders[::turn]:
                    contender.launches.clear()
                    output = _answer(contender, prompts[number], plan.max_tokens)
                    runs.append(_run(workload.kind, number, repeat, contender, output))
                    task.advance(1)
    return runs


def chat_ids(model: LoadedModel, prompt: str) -> list[int]:
    """A prompt as the model's chat template puts it, as it is where there is none."""
    if model.chat_template is None:
        return model.tokenizer.encode(prompt)
    text = model.chat_template.render([{"role": "user", "content": prompt}])
    return model.tokenizer.encode(text, add_bos=False)


def _contenders(model: LoadedModel, plan: Plan, longest: int) -> list[Contender]:
    settings = Settings(max_sequences=1, max_length=longest + plan.max_tokens)
    return [_contender(model, shape, plan.used_drafter(shape), settings) for shape in plan.shapes]


def _contender(
    model: LoadedModel, option: str, drafter: Path | None, settings: Settings
) -> Contender:
    chosen = speculator(asked(option, drafter), model.decoder)
    contender = Contender(_name(option, drafter), Engine(model, settings, chosen), [])
    contender.engine.observers.append(contender.launches.append)
    return contender


def _name(option: str, drafter: Path | None) -> str:
    """The drafter, then the shape where one was asked for."""
    if option in (_OFF, "ngram", "auto"):
        return {_OFF: PLAIN}.get(option, option)
    return f"{'ngram' if drafter is None else 'eagle3'} {option}"


def _answer(contender: Contender, prompt: list[int], max_tokens: int) -> RequestOutput:
    engine = contender.engine
    request = engine.add(prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens))
    *_, last = engine.follow([request])
    assert last.output is not None
    return last.output


def _run(kind: str, prompt: int, repeat: int, contender: Contender, output: RequestOutput) -> Run:
    answer = output.outputs[0]
    rounds = [launch for launch in contender.launches if not launch.chunk_rows]
    return Run(
        kind=kind,
        prompt=prompt,
        repeat=repeat,
        shape=contender.shape,
        token_ids=answer.token_ids,
        seconds=output.seconds - output.first_token_seconds,
        rounds=answer.speculation.rounds,
        emitted=answer.speculation.emitted,
        drafted=answer.speculation.drafted,
        accepted=answer.speculation.accepted,
        drafting_seconds=tuple(launch.seconds for launch in rounds if launch.draft_nodes),
    )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(
            f"{name} cannot be {value}",
            "it must be a whole number of at least 1",
            f"give --{name.replace('_', '-')} a larger value, or leave it out",
        )
