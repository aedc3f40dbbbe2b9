"""A minute that finds wiring mistakes: overfit a few answers, then decode them with the result.

What is learnt by heart must come out again when the drafter serves. A tap, a shift or a mask that
differs between training and serving, or is simply wrong, shows in the accepted length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from alula.bench.decode import chat_ids
from alula.bench.workloads import WORKLOADS
from alula.errors import ModelError
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.training.corpus import Conversation, Corpus, in_memory
from alula.training.drafting import as_checkpoint
from alula.training.duplicates import signature
from alula.training.evaluate import Prompt, Setting, answer, summary
from alula.training.fit import Fit, Trainer
from alula.training.network import Teacher
from alula.training.writer import Ask, Writer, answers

SEQUENCES = 32
MOST_DIVERGENCE = 0.5
"""Nats between target and drafter at the first step, on what was learnt."""
LEAST_TAU = 2.5
"""Accepted length of a chain of 3 on the answers that were learnt; at most 4."""
_TOKENS = 24
_STEPS = 3
_SETTINGS = Fit(
    draft_vocab=2048,
    steps=_STEPS,
    epochs=90,
    batch_tokens=1 << 20,
    rate=2e-3,
    last_rate=1e-4,
    muon=False,
)


class Checked(NamedTuple):
    """What the overfit reached."""

    divergence: float
    tau: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"self-check: divergence {self.divergence:.2f} nats (at most {MOST_DIVERGENCE}), "
            f"τ {self.tau:.2f} (at least {LEAST_TAU}) after {self.seconds:.0f} s"
        )


def lesson() -> list[str]:
    """The 32 shortest prompts of `bench`."""
    texts = [text for group in WORKLOADS.values() for text in group]
    return sorted(texts, key=len)[:SEQUENCES]


def self_check(
    model: LoadedModel,
    write: Writer,
    progress: Progress,
    settings: Fit = _SETTINGS,
    texts: Sequence[str] | None = None,
) -> Checked:
    """Overfit the target's greedy answers to `texts` and decode the same prompts.

    Raises ModelError where either limit is missed.
    """
    started = time.perf_counter()
    asked = [Prompt("lesson", chat_ids(model, text)) for text in texts or lesson()]
    asks = [Ask(prompt.ids, 0.0, number, _TOKENS) for number, prompt in enumerate(asked)]
    corpus = _corpus(asked, answers(write, asks, progress))
    trainer = Trainer(model, corpus, settings)
    divergence = _overfit(trainer, progress)
    dtype = torch.float32 if model.decoder.device.type == "cpu" else torch.float16
    checkpoint = as_checkpoint(trainer.network, trainer.draft_ids, dtype)
    way = Setting(f"chain:{_STEPS}", 0.0, shared=True)
    drafted = answer(
        model, checkpoint, way, asked, max_tokens=_TOKENS, sequences=8, progress=progress
    )
    tau = summary([a for a in drafted if a.rounds])["tau"]
    checked = Checked(divergence, tau, time.perf_counter() - started)
    if divergence > MOST_DIVERGENCE or tau < LEAST_TAU:
        raise ModelError(
            "the drafter cannot learn 32 answers by heart",
            str(checked),
            "this points to a mistake in taps, shift or mask; do not train on, report it",
        )
    return checked


def _corpus(asked: Sequence[Prompt], answers: Sequence[list[int]]) -> Corpus:
    nothing = signature([])
    return in_memory(
        [
            Conversation(
                prompt.ids + answer,
                [False] * len(prompt.ids) + [True] * len(answer),
                held_out=False,
                temperature=0.0,
                source="prompts",
                signature=nothing,
            )
            for prompt, answer in zip(asked, answers, strict=True)
        ]
    )


def _overfit(trainer: Trainer, progress: Progress) -> float:
    """Learn one batch over and over; the divergence of the first step at the end."""
    lesson = trainer.prepare(trainer.batch())
    loss = np.inf
    with progress("self-check", len(trainer.plan)) as task:
        while trainer.step < len(trainer.plan):
            loss = float(trainer.learn(lesson)[0].loss)
            task.advance(1)
    return loss - _entropy(lesson.teacher)


def _entropy(teacher: Teacher) -> float:
    """Mean of what no drafter can know, over the places the first step learns."""
    known = (teacher.choice >= 0) & (teacher.places >= 1)
    return float(torch.special.entr(teacher.probabilities[known].float()).sum(-1).mean())
