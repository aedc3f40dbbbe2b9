"""Fitting a drafter to the target: training-time test over the corpus, features made on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alula.errors import UsageError
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.ops.memory import memory_for
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint
from alula.speculation.eagle3_config import write_config
from alula.training.corpus import Batch, Corpus, batches
from alula.training.curve import Curve
from alula.training.drafting import (
    draft_vocabulary,
    drafter_config,
    from_checkpoint,
    initialise,
)
from alula.training.held_out import Judge
from alula.training.network import DraftNetwork, StepLoss, Teacher, weighted
from alula.training.optimiser import Optimiser
from alula.training.state import load_state, save_state
from alula.training.stop import heard
from alula.training.target import DenseTarget, sent

STATE = "state.safetensors"
CURVE = "curve.jsonl"
_LOG_EVERY = 20
_ON_SHORTAGE = "lower --batch-tokens and go on with --resume"
_FREE = ("batch_tokens", "checkpoint_seconds", "judgements", "judged")
"""Settings that may change between a checkpoint and going on from it."""


@dataclass(frozen=True)
class Fit:
    """How a drafter is fitted."""

    draft_vocab: int = 8192
    steps: int = 5
    """Unrolled steps J."""
    epochs: int = 8
    batch_tokens: int = 16384
    """Tokens of a batch, padding counted; the setting that decides memory."""
    rate: float = 3e-3
    last_rate: float = 3e-4
    warm_up: float = 0.02
    """Share of all batches over which the rate rises."""
    clip: float = 0.5
    muon: bool = True
    """Matrices are moved by Muon. AdamW alone learns a few sequences by heart sooner."""
    seed: int = 0
    max_positions: int = 1024
    checkpoint_seconds: float = 180.0
    judgements: int = 20
    """Times that held-out text is looked over."""
    judged: int = 128
    """Held-out conversations looked over each time."""


class Lesson(NamedTuple):
    """A batch and what the target makes of it."""

    tokens: Tensor
    """[B, n] int64."""
    features: Tensor
    """[B, n - 1, taps * h]."""
    teacher: Teacher


class Trainer:
    """A network, its optimiser and the batches it sees."""

    def __init__(
        self,
        model: LoadedModel,
        corpus: Corpus,
        settings: Fit,
        start: Eagle3Checkpoint | None = None,
    ) -> None:
        """`start`: an exported drafter to go on from, its optimiser's state lost.

        Raises UsageError for a corpus without anything to learn from.
        """
        decoder = model.decoder
        self.settings = settings
        self._corpus = corpus
        self.device = decoder.device
        self._target = DenseTarget(decoder)
        self._embed = decoder.embed
        if start is None:
            counts = corpus.frequencies(decoder.shape.vocab_size)
            config = drafter_config(decoder.shape, settings.draft_vocab, settings.max_positions)
            ids = draft_vocabulary(counts, config.draft_vocab_size, model.tokenizer)
            network = DraftNetwork(config)
            initialise(network, decoder, ids, settings.seed)
        else:
            network, ids = from_checkpoint(start), start.target_ids
        self.network = network.to(self.device)
        self.draft_ids = ids.to(self.device)
        self.taps = network.config.taps(decoder.shape.layers)
        self.plan = self._plan()
        self.optimiser = Optimiser(self.network, settings.rate, muon=settings.muon)
        self.step = 0

    def _plan(self) -> list[list[int]]:
        """The batches of all epochs, the same at every start."""
        kept = np.flatnonzero(~self._corpus.held_out)
        if not len(kept):
            raise UsageError(
                "there is nothing to learn from",
                "the training data holds no conversation outside of the held-out share",
                "write more with --tokens",
            )
        lengths, settings = self._corpus.lengths(), self.settings
        seeds = (settings.seed * 1000 + epoch for epoch in range(settings.epochs))
        return [
            batch for seed in seeds for batch in batches(lengths, kept, settings.batch_tokens, seed)
        ]

    def judged_batches(self) -> list[Batch]:
        """Held-out conversations that were answered greedily."""
        chosen = np.flatnonzero(self._corpus.held_out & (self._corpus.temperature == 0))
        groups = batches(
            self._corpus.lengths(), chosen[: self.settings.judged], self.settings.batch_tokens, 0
        )
        return [self._corpus.batch(group) for group in groups]

    def coverage(self) -> float | None:
        """Share of held-out loss-bearing tokens in the draft vocabulary; None without any."""
        known = np.zeros(self.network.config.vocab_size, bool)
        known[self.draft_ids.cpu().numpy()] = True
        lengths = self._corpus.lengths()
        bears = self._corpus.mask & np.repeat(self._corpus.held_out, lengths)
        return float(known[self._corpus.tokens[bears]].mean()) if bears.any() else None

    def prepare(self, batch: Batch) -> Lesson:
        """Run the target over a batch, which is on the CPU."""
        tokens = sent(batch.tokens, self.device)
        features = self._target.features(tokens, self.taps)
        teacher = self._target.teacher(features.last, batch.mask, self.draft_ids)
        return Lesson(tokens, features.aux[:, :-1], teacher)

    def learn(self, lesson: Lesson) -> list[StepLoss]:
        """One optimiser step; the losses are left on the device, without a gradient."""
        tokens, features, teacher = lesson
        with self._autocast():
            steps = self.settings.steps
            losses = self.network.losses(features, tokens, self._embed, teacher, steps)
            loss = weighted(losses)
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        self.optimiser.step(self.rate(self.step))
        self.step += 1
        return [part._replace(loss=part.loss.detach()) for part in losses]

    def rehearse(self) -> float:
        """Seconds that one batch takes; nothing is learnt from it."""
        started = time.perf_counter()
        tokens, features, teacher = self.prepare(self.batch())
        with self._autocast():
            steps = self.settings.steps
            losses = self.network.losses(features, tokens, self._embed, teacher, steps)
        torch.autograd.backward(weighted(losses))
        self.optimiser.zero_grad()
        return time.perf_counter() - started

    def rate(self, step: int) -> float:
        """Learning rate of a step: a linear rise, then half a cosine down to the last rate."""
        settings, total = self.settings, len(self.plan)
        rise = max(1, int(settings.warm_up * total))
        if step < rise:
            return settings.rate * (step + 1) / rise
        share = (step - rise) / max(1, total - rise)
        fall = 0.5 * (1 + math.cos(math.pi * share))
        return settings.last_rate + (settings.rate - settings.last_rate) * fall

    def judge(self, held_out: Sequence[Batch]) -> dict[str, Any]:
        """Accepted length of a chain as deep as was unrolled, on held-out greedy answers."""
        judge = Judge(self._target, self.taps, self.draft_ids, self.settings.steps)
        with self._autocast():
            walked = judge.walk(self.network, (batch.to(self.device) for batch in held_out))
        return {"tau": walked.tau, "acceptance": walked.acceptance}

    def batch(self) -> Batch:
        """The next one to learn."""
        return self._corpus.batch(self.plan[self.step])

    def save(self, path: Path) -> None:
        """Keep all that is needed to go on to the bit."""
        facts = {
            "step": self.step,
            "batches": len(self.plan),
            "ids": self.draft_ids.tolist(),
            "settings": asdict(self.settings),
            "config": write_config(self.network.config, "float32"),
        }
        save_state(path, self.network, self.optimiser, facts)

    def resume(self, path: Path) -> None:
        """Go on from what `save` kept, to the bit where the settings are the same.

        With other `batch_tokens` it goes on after the same share of all batches. Raises UsageError
        where the checkpoint belongs to other data or settings.
        """
        facts = load_state(path, self.network, self.optimiser)
        was, now = facts["settings"], asdict(self.settings)
        differing = [name for name in now if name not in _FREE and was.get(name) != now[name]]
        same_batches = was["batch_tokens"] == now["batch_tokens"]
        if facts["ids"] != self.draft_ids.tolist() or (
            same_batches and facts["batches"] != len(self.plan)
        ):
            differing.append("data")
        if differing:
            raise UsageError(
                f"{path} belongs to other data or settings",
                f"what differs: {', '.join(differing)}",
                "give the settings of the first run, or another --out folder",
            )
        self.step = facts["step"]
        if not same_batches:
            self.step = round(self.step / facts["batches"] * len(self.plan))

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()


class _Tally:
    """Losses and hits since the last point of the curve, on the device until they are read."""

    def __init__(self) -> None:
        self._losses: list[list[Tensor]] = []
        self._hits: list[list[Tensor]] = []
        self._tokens = 0
        self._started = time.perf_counter()

    def add(self, batch: Batch, losses: list[StepLoss]) -> None:
        self._losses.append([part.loss for part in losses])
        self._hits.append([part.hits.float().mean() for part in losses])
        self._tokens += int(batch.mask.sum())

    def point(self, step: int, rate: float) -> dict[str, Any]:
        """What goes into the curve."""

        def mean(rows: list[list[Tensor]]) -> list[float]:
            stacked = torch.stack([torch.stack(row) for row in rows])
            return [round(value, 4) for value in stacked.mean(0).tolist()]

        return {
            "step": step,
            "loss": mean(self._losses),
            "accuracy": mean(self._hits),
            "rate": rate,
            "answer_tokens_per_second": round(self._tokens / (time.perf_counter() - self._started)),
        }


def fit(
    trainer: Trainer,
    folder: Path,
    progress: Progress,
    say: Callable[[str], None],
    *,
    resume: bool = False,
) -> Curve:
    """Learn all batches that are left; returns the curve.

    Keeps a checkpoint every few minutes, when it is told to stop, and at the end. Raises
    ResourceError where memory is short, MachineError where the disk is full; the last checkpoint
    stays good.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state, settings = folder / STATE, trainer.settings
    if resume and state.is_file():
        trainer.resume(state)
        say(f"going on from step {trainer.step} of {len(trainer.plan)}")
    curve = Curve(folder / CURVE, until=trainer.step)
    held_out = trainer.judged_batches()
    judge_every = max(1, len(trainer.plan) // settings.judgements)
    note = f"--batch-tokens is {settings.batch_tokens}"
    tally, kept = _Tally(), time.monotonic()
    with progress("fitting", len(trainer.plan) - trainer.step) as task, heard() as stop:
        while trainer.step < len(trainer.plan):
            batch = trainer.batch()
            rate = trainer.rate(trainer.step)
            with memory_for("a step of fitting", trainer.device, _ON_SHORTAGE, note=note):
                losses = trainer.learn(trainer.prepare(batch))
            tally.add(batch, losses)
            task.advance(1)
            last = trainer.step == len(trainer.plan)
            if trainer.step % _LOG_EVERY == 0 or last:
                curve.add(tally.point(trainer.step, rate))
                tally = _Tally()
            if trainer.step % judge_every == 0 or last:
                if held_out:
                    curve.add({"step": trainer.step, **trainer.judge(held_out)})
                curve.draw()
                say(_report(trainer, curve))
            due = time.monotonic() - kept > settings.checkpoint_seconds
            if last or due or stop.signal is not None:
                trainer.save(state)
                kept = time.monotonic()
            stop.leave()
    return curve


def _report(trainer: Trainer, curve: Curve) -> str:
    trained = next((p for p in reversed(curve.points) if "loss" in p), None)
    judged = next((p for p in reversed(curve.points) if "tau" in p), None)
    parts = [f"step {trainer.step} of {len(trainer.plan)}"]
    if trained is not None:
        accuracy = " ".join(f"{share:.2f}" for share in trained["accuracy"])
        parts += [f"loss {trained['loss'][0]:.3f}", f"accuracy {accuracy}"]
        parts.append(f"{trained['answer_tokens_per_second']:,} tok/s")
    if judged is not None:
        parts.append(f"held-out τ {judged['tau']:.2f}")
    return " · ".join(parts)
