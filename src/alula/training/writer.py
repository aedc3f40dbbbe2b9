"""Many prompts answered by the model, through the engine or in large dense batches.

Both draw the same tokens, up to rounding: the target's own choice under keyed noise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.engine.core import Engine
from alula.engine.events import Request
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.ops.sample import Wants
from alula.ops.store import Places
from alula.sampling.noise import request_key
from alula.sampling.params import SamplingParams
from alula.sampling.sampler import check, sample
from alula.sampling.state import SamplingState
from alula.training.target import DenseTarget, Kept, causal, grid

_LOOK_EVERY = 8  # steps between looks at what has finished, which wait for the device
_LINES = 2048
_WANTS = Wants(noise=True, filters=0, adjustments=False)  # of `_params`
_SHARE = 0.4  # of the free memory, for keys and values


class Ask(NamedTuple):
    """One prompt and how to continue it."""

    prompt: list[int]
    temperature: float
    seed: int
    max_tokens: int
    min_p: float = 0.0
    stop_ids: frozenset[int] = frozenset()
    """Besides the model's own."""


Then = Callable[[int, list[int]], Ask | None]
"""Told the number of an ask and what was written, the token that ended it last: what is to be
written next under this number, None where that was all."""

Writer = Callable[[Sequence[Ask], Then, Progress], None]
"""Continues every prompt and what follows from it, many side by side, in an order of its own."""


def answers(write: Writer, asks: Sequence[Ask], progress: Progress) -> list[list[int]]:
    """What is written to single asks, in their order."""
    found: list[list[int]] = [[] for _ in asks]

    def keep(number: int, written: list[int]) -> None:
        found[number] = written

    write(asks, keep, progress)
    return found


def writer(model: LoadedModel, max_length: int) -> Writer:
    """What writes fastest on the model's device. `max_length`: of a prompt and its answer."""
    if model.decoder.device.type == "cuda":
        return DenseWriter(model, _lines(model, max_length), max_length)
    return EngineWriter(model, 16, max_length)


def _lines(model: LoadedModel, max_length: int) -> int:
    """As many lines as a share of the free memory holds."""
    free, _ = torch.cuda.mem_get_info(model.decoder.device)
    fitting = int(_SHARE * free / (max_length * model.decoder.cache_bytes_per_token))
    return max(8, min(_LINES, fitting))


class EngineWriter:
    """Continues prompts through the engine, as `generate` does."""

    def __init__(self, model: LoadedModel, sequences: int, max_length: int) -> None:
        settings = Settings(
            max_sequences=sequences,
            max_length=max_length,
            cache_tokens=(sequences + 1) * (max_length + 64),
        )
        self._engine = Engine(model, settings, Speculator())
        self._sequences = sequences

    def __call__(self, asks: Sequence[Ask], then: Then, progress: Progress) -> None:
        """Write `sequences` of them side by side; what follows goes first, its keys are there."""
        waiting = deque(enumerate(asks))
        running: dict[int, Request] = {}
        with progress("writing", len(asks)) as task:
            while waiting or running:
                while waiting and len(running) < self._sequences:
                    number, ask = waiting.popleft()
                    running[number] = self._engine.add(ask.prompt, _params(ask))
                self._engine.step()
                for number in [n for n, request in running.items() if not request.unfinished]:
                    written = running.pop(number).answers[0].output().token_ids
                    if following := then(number, written):
                        waiting.appendleft((number, following))
                    else:
                        task.advance(1)


class DenseWriter:
    """Continues prompts in one large batch with keys and values in one dense block a layer.

    A line that has finished is filled again once an eighth of them has.
    """

    def __init__(self, model: LoadedModel, lines: int, max_length: int) -> None:
        shape, device = model.decoder.shape, model.decoder.device
        self._target = DenseTarget(model.decoder)
        self._decoder = model.decoder
        self._eos = model.tokenizer.eos_ids
        self._vocabulary = min(shape.vocab_size, model.tokenizer.vocab_size)
        self._max_length = max_length
        size = (2, shape.layers, lines, shape.kv_heads, max_length, shape.head_dim)
        self._cache = torch.zeros(size, dtype=model.decoder.cache_dtype, device=device)
        self._lines = lines

    @torch.inference_mode()
    def __call__(self, asks: Sequence[Ask], then: Then, progress: Progress) -> None:
        """Write all."""
        state = _Lines(self._lines, self._max_length, self._vocabulary, self._decoder.device)
        waiting = deque(sorted(enumerate(asks), key=lambda item: len(item[1].prompt)))
        with progress("writing", len(asks)) as task:
            while waiting or state.busy:
                free = [line for line in range(self._lines) if line not in state.busy]
                if waiting and (len(free) >= self._lines // 8 or not state.busy):
                    new = {line: waiting.popleft() for line in free[: len(waiting)]}
                    self._admit(state, {line: ask for line, (_, ask) in new.items()})
                    state.busy |= {line: number for line, (number, _) in new.items()}
                for _ in range(_LOOK_EVERY):
                    self._step(state)
                for line, number in state.take_finished():
                    if following := then(number, state.answer(line)):
                        waiting.append((number, following))
                    else:
                        task.advance(1)

    def _admit(self, state: _Lines, asks: dict[int, Ask]) -> None:
        """Compute the prompts of new lines and choose their first tokens."""
        ordered = sorted(asks, key=lambda line: len(asks[line].prompt))
        lines = torch.tensor(ordered, device=state.length.device)
        state.begin(ordered, [asks[line] for line in ordered], self._eos)
        length = int(state.length[lines].max())
        for part in torch.split(lines, max(1, 65536 // length)):
            n = int(state.length[part].max())

            def attend(q: Tensor, keys: Tensor, values: Tensor, part: Tensor = part) -> Tensor:
                n = q.shape[1]
                return causal(q, keys[:, :, :n][part], values[:, :, :n][part])

            positions = torch.arange(n, device=part.device)
            kept = Kept(self._cache[0], self._cache[1], grid(part, positions))
            ids = state.tokens[part, :n]
            last = self._target.run(ids, positions[None], (), kept, attend).last
            at = torch.arange(len(part), device=part.device)
            self._choose(state, part, last[at, state.length[part] - 1])

    def _step(self, state: _Lines) -> None:
        """One token for every line; those that are done compute for nothing."""
        every = torch.arange(self._lines, device=state.length.device)
        positions = (state.length - 1).clamp_min(0)
        longest = state.bound()
        seen = torch.arange(longest, device=positions.device) <= positions[:, None]
        bias = torch.where(seen, 0.0, -torch.inf).to(self._cache.dtype)[:, None, None]

        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            grouped = q.view(len(q), keys.shape[1], -1, q.shape[-1])
            mixed = F.scaled_dot_product_attention(
                grouped, keys[:, :, :longest], values[:, :, :longest], bias
            )
            return mixed.flatten(1, 2)[:, None]

        ids = state.tokens[every, positions][:, None].clamp_min(0)
        kept = Kept(self._cache[0], self._cache[1], Places(every, positions))
        last = self._target.run(ids, positions[:, None], (), kept, attend).last[:, 0]
        self._choose(state, every, last)

    def _choose(self, state: _Lines, lines: Tensor, hidden: Tensor) -> None:
        logits = self._target.logits(hidden)[:, : self._vocabulary]
        positions = state.length[lines]
        nothing = positions.new_empty(len(lines), 0)
        drawn = sample(logits, lines, positions, nothing, state.sampling, _WANTS)
        state.append(lines, drawn)


class _Lines:
    """The sequences of a dense batch."""

    def __init__(self, count: int, max_length: int, vocabulary: int, device: torch.device) -> None:
        self.busy: dict[int, int] = {}
        """Line to the number of its prompt."""
        self.tokens = torch.zeros(count, max_length + 1, dtype=torch.int64, device=device)
        self.length = torch.zeros(count, dtype=torch.int64, device=device)
        self.limit = torch.zeros_like(self.length)
        self.done = torch.ones(count, dtype=torch.bool, device=device)
        self.sampling = SamplingState(count, vocabulary, device)
        self.stops = torch.full((count, 8), -1, device=device)
        self._max_length = max_length
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._longest = 0

    def begin(self, lines: list[int], asks: list[Ask], eos: frozenset[int]) -> None:
        """Give lines to prompts."""
        device = self.length.device
        rows = torch.tensor(lines, device=device)
        longest = max(len(ask.prompt) for ask in asks)
        padded = torch.zeros(len(asks), longest, dtype=torch.int64)
        stops = torch.full((len(asks), self.stops.shape[1]), -1)
        for number, ask in enumerate(asks):
            padded[number, : len(ask.prompt)] = torch.tensor(ask.prompt)
            ends = sorted(eos | ask.stop_ids)
            stops[number, : len(ends)] = torch.tensor(ends)
        self.tokens[rows, :longest] = padded.to(device)
        self.stops[rows] = stops.to(device)
        lengths = [len(ask.prompt) for ask in asks]
        limits = [
            min(n + ask.max_tokens, self._max_length) for n, ask in zip(lengths, asks, strict=True)
        ]
        floors = [math.log(ask.min_p) if ask.min_p else -math.inf for ask in asks]
        self._starts |= dict(zip(lines, lengths, strict=True))
        self.length[rows] = torch.tensor(lengths, device=device)
        self.limit[rows] = torch.tensor(limits, device=device)
        sampling = self.sampling
        for line, ask in zip(lines, asks, strict=True):
            sampling.params[line] = _params(ask)
        sampling.key[rows] = torch.tensor([request_key(ask.seed, 0) for ask in asks], device=device)
        warmth = [ask.temperature for ask in asks]
        sampling.temperature[rows] = torch.tensor(warmth, device=device)
        sampling.log_min_p[rows] = torch.tensor(floors, device=device)
        self.done[rows] = False
        self._longest = max(self._longest, longest)

    def append(self, lines: Tensor, tokens: Tensor) -> None:
        """Add a token to every line that is not done, and see whether it ends it."""
        running = ~self.done[lines]
        at = self.length[lines]
        self.tokens[lines, at] = torch.where(running, tokens, self.tokens[lines, at])
        self.length[lines] = at + running
        stopped = (tokens[:, None] == self.stops[lines]).any(1)
        self.done[lines] |= stopped | (self.length[lines] >= self.limit[lines])

    def bound(self) -> int:
        """More positions than any line has, without asking the device; grows with every step."""
        self._longest = min(self._longest + 1, self._max_length)
        return min(-(-self._longest // 64) * 64, self._max_length)

    def take_finished(self) -> list[tuple[int, int]]:
        """Lines that are done now, with the numbers of their prompts; they are free again."""
        done, lengths = self.done.tolist(), self.length.tolist()
        finished = [(line, number) for line, number in self.busy.items() if done[line]]
        for line, _ in finished:
            del self.busy[line]
        self._ends |= {line: lengths[line] for line, _ in finished}
        self._longest = max((lengths[line] for line in self.busy), default=0)
        return finished

    def answer(self, line: int) -> list[int]:
        """What was written on a finished line. Raises ModelError where no token could be chosen."""
        written = self.tokens[line, self._starts[line] : self._ends[line]].cpu()
        check(written)
        return written.tolist()


def _params(ask: Ask) -> SamplingParams:
    return SamplingParams(
        temperature=ask.temperature,
        min_p=ask.min_p,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        stop_token_ids=tuple(sorted(ask.stop_ids)),
    )
