"""How well a drafter drafts: accepted length and acceptance by depth, per kind of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from alula.bench.decode import chat_ids
from alula.bench.workloads import select
from alula.engine.core import Engine
from alula.engine.events import Request as EngineRequest
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.sampling.params import SamplingParams
from alula.speculation.drafter import DraftContext, Round
from alula.speculation.eagle3 import Eagle3
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint
from alula.speculation.eagle3_drafter import Eagle3Drafter
from alula.speculation.tree import DraftTree, TreeShape, parse_shape
from alula.training.corpus import Corpus
from alula.training.duplicates import repetition
from alula.training.held_out import spans

HELD_OUT = "held-out"
ALL, LOOPING = "all", "looping"
LOOPS = 0.2
"""Share of repeated 4-grams from which an answer counts as looping."""
SHAPES = ("chain:5", "tree:5x4:16")
_OTHER_NOISE = 0x2545F4914F6CDD1D
_RESAMPLES = 2000


class Prompt(NamedTuple):
    """What is answered, and which kind of text it asks for."""

    kind: str
    ids: list[int]


class Answered(NamedTuple):
    """One answer and how drafting it fared."""

    kind: str
    looping: bool
    rounds: int
    emitted: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


class Setting(NamedTuple):
    """One way to decode."""

    shape: str
    temperature: float
    shared: bool
    """Whether the drafter sees the noise that the target's choices will see."""

    @property
    def noise(self) -> str:
        """In words."""
        if self.temperature == 0:
            return "none"
        return "shared" if self.shared else "independent"

    def __str__(self) -> str:
        noise = "" if self.temperature == 0 else f", {self.noise} noise"
        return f"{self.shape} at T {self.temperature}{noise}"


class _OwnNoise(Eagle3Drafter):
    """Drafts with noise of its own, as engines do that cannot share it; for comparison only."""

    def propose(self, context: DraftContext, depth: int) -> DraftTree:
        return super().propose(context._replace(keys=context.keys ^ _OTHER_NOISE), depth)

    def draft_on(self, round_: Round, depth: int) -> None:
        roots = round_.roots._replace(keys=round_.roots.keys ^ _OTHER_NOISE)
        super().draft_on(round_._replace(roots=roots), depth)


def settings(shapes: Sequence[str] = SHAPES, temperature: float = 0.8) -> list[Setting]:
    """Every shape greedily and at a temperature, there with both kinds of noise."""
    ways = ((0.0, True), (temperature, True), (temperature, False))
    return [Setting(shape, *way) for shape in shapes for way in ways]


def prompts(
    model: LoadedModel, corpus: Corpus | None, each: int | None = None, held_out: int = 48
) -> list[Prompt]:
    """`each` prompts of every kind of `bench`, all where None, and held-out first queries."""
    chosen = select(prompts_per_kind=each)
    found = [Prompt(work.kind, chat_ids(model, work.prompt)) for work in chosen]
    if corpus is not None:
        for number in np.flatnonzero(corpus.held_out)[:held_out]:
            tokens, mask = corpus.of(int(number))
            start, _ = spans(mask.tolist())[0]
            found.append(Prompt(HELD_OUT, tokens[:start].tolist()))
    return found


def contexts(
    corpus: Corpus, lengths: Sequence[int], each: int, longest: int
) -> list[tuple[int, list[Prompt]]]:
    """For each context length `each` prompts that long: held-out conversations one after another,
    the last one up to its answer. A length beyond `longest` is cut to it.
    """
    numbers = np.flatnonzero(corpus.held_out).tolist()
    dice = np.random.default_rng(0)
    found = []
    for length in dict.fromkeys(min(length, longest) for length in lengths):
        if numbers:
            made = [
                _joined(corpus, dice.permutation(numbers).tolist(), length) for _ in range(each)
            ]
            found.append((length, [Prompt(f"{length} tokens", ids) for ids in made if ids]))
    return found


def _joined(corpus: Corpus, numbers: Sequence[int], length: int) -> list[int]:
    last, mask = corpus.of(numbers[0])
    question: list[int] = last[: spans(mask.tolist())[0][0]].tolist()
    before: list[int] = []
    for number in [*numbers[1:], *numbers] * 64:
        if len(before) + len(question) >= length:
            break
        before += corpus.of(number)[0].tolist()
    return before[: max(0, length - len(question))] + question


def answer(
    model: LoadedModel,
    checkpoint: Eagle3Checkpoint,
    setting: Setting,
    asked: Sequence[Prompt],
    *,
    max_tokens: int,
    sequences: int,
    progress: Progress,
) -> list[Answered]:
    """Answer prompts with the drafter; prompt number i has the seed i."""
    engine = _engine(model, checkpoint, setting, asked, max_tokens, sequences)
    requests = [
        engine.add(prompt.ids, _params(setting, number, max_tokens))
        for number, prompt in enumerate(asked)
    ]
    with progress(str(setting), len(asked)) as task:
        for event in engine.follow(requests):
            task.advance(int(event.output is not None))
    return [
        _answered(prompt.kind, request) for prompt, request in zip(asked, requests, strict=True)
    ]


def _engine(
    model: LoadedModel,
    checkpoint: Eagle3Checkpoint,
    setting: Setting,
    asked: Sequence[Prompt],
    max_tokens: int,
    sequences: int,
) -> Engine:
    decoder = model.decoder
    network = Eagle3(
        checkpoint, embedding=decoder.embedding, device=decoder.device, dtype=decoder.dtype
    )
    kind = Eagle3Drafter if setting.shared else _OwnNoise
    shape: TreeShape = parse_shape(setting.shape)
    drafter = kind(network, shape, taps=checkpoint.config.taps(decoder.shape.layers))
    longest = max(len(prompt.ids) for prompt in asked) + max_tokens
    sizes = Settings(
        max_sequences=sequences,
        max_length=longest,
        cache_tokens=(sequences + 1) * (longest + 4 * shape.nodes + 64),
    )
    return Engine(model, sizes, Speculator(drafter))


def _params(setting: Setting, seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=setting.temperature, seed=seed, max_tokens=max_tokens)


def _answered(kind: str, request: EngineRequest) -> Answered:
    output = request.answers[0].output()
    stats = output.speculation
    return Answered(
        kind,
        repetition(output.token_ids) >= LOOPS,
        stats.rounds,
        stats.emitted,
        stats.drafted,
        stats.accepted,
    )


def rows(setting: Setting, answers: Sequence[Answered]) -> list[dict[str, Any]]:
    """Summaries by kind, of all kinds together, and of looping answers apart."""
    straight = [a for a in answers if not a.looping and a.rounds]
    groups: dict[str, list[Answered]] = {ALL: [a for a in straight if a.kind != HELD_OUT]}
    for each in straight:
        groups.setdefault(each.kind, []).append(each)
    groups[LOOPING] = [a for a in answers if a.looping and a.rounds]
    described = {**setting._asdict(), "noise": setting.noise}
    return [
        {**described, "kind": kind, **summary(group)} for kind, group in groups.items() if group
    ]


def summary(group: Sequence[Answered]) -> dict[str, Any]:
    """τ with a 95 % interval from bootstrap over prompts, and conditional acceptance by depth."""
    emitted = np.array([a.emitted for a in group])
    rounds = np.array([a.rounds for a in group])
    drawn = np.random.default_rng(0).integers(0, len(group), (_RESAMPLES, len(group)))
    taus = emitted[drawn].sum(1) / rounds[drawn].sum(1)
    low, high = np.quantile(taus, (0.025, 0.975))
    drafted = [sum(depth) for depth in zip_longest(*(a.drafted for a in group), fillvalue=0)]
    accepted = [sum(depth) for depth in zip_longest(*(a.accepted for a in group), fillvalue=0)]
    return {
        "prompts": len(group),
        "tau": float(emitted.sum() / rounds.sum()),
        "low": float(low),
        "high": float(high),
        "acceptance": [a / d for a, d in zip(accepted, drafted, strict=True) if d],
    }


def evaluate(
    model: LoadedModel,
    checkpoint: Eagle3Checkpoint,
    corpus: Corpus | None,
    progress: Progress,
    *,
    ways: Sequence[Setting] | None = None,
    each: int | None = None,
    held_out: int = 48,
    max_tokens: int = 128,
    sequences: int = 16,
    lengths: Sequence[int] = (512, 1024, 2048, 4096, 8192),
    contexts_each: int = 8,
) -> Mapping[str, Any]:
    """All settings on all prompts, and the greedy chain by context length."""
    ways = settings() if ways is None else ways
    asked = prompts(model, corpus, each, held_out)
    found: list[dict[str, Any]] = []
    for setting in ways:
        done = answer(
            model,
            checkpoint,
            setting,
            asked,
            max_tokens=max_tokens,
            sequences=sequences,
            progress=progress,
        )
        found += rows(setting, done)
    by_context: list[dict[str, Any]] = []
    if corpus is not None:
        longest = model.decoder.shape.max_positions - max_tokens
        chain = Setting(ways[0].shape, 0.0, shared=True)
        for length, group in contexts(corpus, lengths, contexts_each, longest):
            by_context += at_length(model, checkpoint, chain, length, group, progress)
    return {"max_tokens": max_tokens, "rows": found, "by_context": by_context}


def at_length(
    model: LoadedModel,
    checkpoint: Eagle3Checkpoint,
    way: Setting,
    length: int,
    asked: Sequence[Prompt],
    progress: Progress,
) -> list[dict[str, Any]]:
    """One row on prompts of one length; none where every answer loops."""
    done = answer(model, checkpoint, way, asked, max_tokens=64, sequences=4, progress=progress)
    told = [a for a in done if a.rounds]
    straight = [a for a in told if not a.looping]
    if not straight:
        return []
    return [{"length": length, "looping": len(told) - len(straight)} | summary(straight)]
