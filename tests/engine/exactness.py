"""Requests, engines and an oracle for proving that only the request decides its tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import torch

from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator, asked, speculator
from alula.models.load import LoadedModel
from alula.sampling.params import SamplingParams
from alula.speculation.drafter import DraftContext, Drafter
from alula.speculation.eagle3_checkpoint import random_checkpoint, save
from alula.speculation.ngram import NgramDrafter
from alula.speculation.tree import DraftTree, TreeShape, parse_shape

Case = tuple[list[int], SamplingParams]


def cases(vocabulary: int, count: int, tokens: int, *, longest: int = 90) -> list[Case]:
    """`count` greedy and `count` sampled requests; half of the prompts begin alike."""
    dice = random.Random(7)
    shared = [dice.randrange(vocabulary) for _ in range(longest // 2)]
    made: list[Case] = []
    for number in range(2 * count):
        own = [dice.randrange(vocabulary) for _ in range(dice.randint(1, longest))]
        prompt = (
            (shared + own)[: dice.randint(longest // 2 + 1, longest)] if number % 4 < 2 else own
        )
        made.append((prompt, _params(number, tokens)))
    return made


def _params(number: int, tokens: int) -> SamplingParams:
    if number % 2 == 0:
        return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return SamplingParams(
        temperature=0.8,
        top_p=0.95,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=number,
        max_tokens=tokens,
        ignore_eos=True,
    )


def engine(
    model: LoadedModel, speculator: Speculator | None = None, **sizes: int | bool | None
) -> Engine:
    """An engine with an empty cache over a model that is loaded once."""
    chosen = {"cache_tokens": 4096, "max_length": 512, **sizes}
    return Engine(model, Settings(**chosen), speculator or Speculator())  # type: ignore[arg-type]


def answers(engine: Engine, cases: Iterable[Case], *, together: bool) -> list[list[int]]:
    """The token ids of each request, run side by side or one after the other."""
    groups = [list(cases)] if together else [[case] for case in cases]
    found: list[list[int]] = []
    for group in groups:
        requests = [engine.add(prompt, params) for prompt, params in group]
        while engine.has_work:
            engine.step()
            engine.scheduler.check()
        found += [request.answers[0].sequence.output_ids for request in requests]
    return found


def answers_under_pressure(engine: Engine, cases: Iterable[Case]) -> tuple[list[list[int]], int]:
    """The token ids of each request, all at once, and how often one gave way for another."""
    requests = [engine.add(prompt, params) for prompt, params in cases]
    while engine.has_work:
        engine.step()
        engine.scheduler.check()
    sequences = [request.answers[0].sequence for request in requests]
    preemptions = sum(sequence.preemptions for sequence in sequences)
    return [sequence.output_ids for sequence in sequences], preemptions


class Oracle(Drafter):
    """Drafts the true continuation in part, hidden among wrong siblings; no model would do it.

    It knows each request's answer by its prompt, and at each level puts the right token at a
    random place, or leaves it out one time in `miss`.
    """

    def __init__(
        self, shape: TreeShape, truths: Sequence[tuple[list[int], list[int]]], miss: int = 6
    ) -> None:
        super().__init__(shape)
        self._truths = truths
        self._miss = miss
        self._dice = random.Random(3)

    def allocate(self, pages: int, page_size: int, sequences: int, device: torch.device) -> None:
        """It keeps no keys."""

    def propose(self, context: DraftContext, depth: int) -> DraftTree:
        """See `Drafter.propose`."""
        count = len(context.history)
        tokens = torch.full((count, self.shape.nodes), -1)
        parents = torch.zeros((count, self.shape.nodes), dtype=torch.int64)
        for line in context.drafting.tolist():
            known = context.history[line, : context.lengths[line]].tolist()
            nodes = self._tree(self._continuation(known), depth)
            for number, (token, parent) in enumerate(nodes[: self.shape.nodes]):
                tokens[line, number], parents[line, number] = token, parent
        device = context.history.device
        return DraftTree(tokens.to(device), parents.to(device))

    def _continuation(self, known: list[int]) -> list[int]:
        for prompt, answer in self._truths:
            if (prompt + answer)[: len(known)] == known and len(known) > len(prompt):
                return (prompt + answer)[len(known) :]
        return []

    def _tree(self, truth: list[int], depth: int) -> list[tuple[int, int]]:
        nodes: list[tuple[int, int]] = []
        parent = 0
        for right in truth[:depth]:
            found = self._dice.randrange(self._miss) > 0
            places = list(range(self.shape.width))
            self._dice.shuffle(places)
            beside = [
                right + 1 + p if right < self.shape.width + 2 else right - 1 - p for p in places
            ]
            siblings = [
                right if found and place == 0 else wrong
                for place, wrong in zip(places, beside, strict=True)
            ]
            first = len(nodes) + 1
            nodes += [(token, parent) for token in siblings]
            if not found:
                break
            parent = first + siblings.index(right)
        return nodes


class Bench:
    """A model, the requests, and what plain decoding alone answers to each."""

    def __init__(self, model: LoadedModel, cases: list[Case], folder: Path) -> None:
        self.model = model
        self.cases = cases
        self._folder = folder

    @cached_property
    def plain(self) -> list[list[int]]:
        return answers(engine(self.model), self.cases, together=False)

    def speculator(self, words: str) -> Speculator:
        """`off`, `ngram`, or a kind of drafter and its shape."""
        kind, _, shape = words.partition(" ")
        if kind == "off":
            return Speculator()
        if kind == "ngram":
            return Speculator(NgramDrafter(parse_shape("chain:5"), shortest=1))
        if kind == "eagle":
            return speculator(asked(shape, self._drafter()), self.model.decoder)
        truths = [(prompt, out) for (prompt, _), out in zip(self.cases, self.plain, strict=True)]
        return Speculator(Oracle(parse_shape(shape), truths))

    def _drafter(self) -> Path:
        shape, folder = self.model.decoder.shape, self._folder / "drafter"
        if not folder.exists():
            checkpoint = random_checkpoint(
                hidden_size=shape.hidden_size,
                vocab_size=shape.vocab_size,
                layers=shape.layers,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
            )
            save(checkpoint, folder)
        return folder
