"""An engine's requests and the answers of their samples, from `open` until the last is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from alula.engine.answer import Answer
from alula.engine.events import Event, Request
from alula.engine.outputs import RequestOutput
from alula.engine.request import FinishReason, Sequence
from alula.engine.runner import Emitted
from alula.errors import UsageError
from alula.sampling.noise import fresh_seed, request_key
from alula.sampling.params import SamplingParams
from alula.text.tokenizer import Tokenizer

Finish = Callable[[Sequence, FinishReason], None]


class Requests:
    """Numbers requests and samples, and puts into a request's `events` what its samples emit."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size`: tokens that both the model and the tokenizer know."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._requests: dict[str, Request] = {}
        self._by_sequence: dict[int, tuple[Request, Answer]] = {}
        self._next_id = 0

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether a sample is still wanted."""
        return sequence.id in self._by_sequence

    def open(self, prompt_ids: list[int], params: SamplingParams, prompt: str | None) -> Request:
        """A request without samples yet."""
        seed = fresh_seed() if params.seed is None else params.seed
        request = Request(str(self._next_id), prompt, prompt_ids, params, seed)
        self._requests[request.id] = request
        return request

    def sample(self, request: Request) -> Sequence:
        """The sequence of the request's next sample."""
        key = request_key(request.seed, len(request.answers))
        sequence = Sequence(self._next_id, request.prompt_ids, request.params, key)
        self._next_id += 1
        answer = Answer(sequence, len(request.answers), self._tokenizer)
        request.answers.append(answer)
        request.unfinished += 1
        self._by_sequence[sequence.id] = (request, answer)
        return sequence

    def drop(self, request: Request) -> None:
        """Forget a request and what is unfinished of it."""
        for answer in request.answers:
            self._by_sequence.pop(answer.sequence.id, None)
        self._requests.pop(request.id, None)
        request.unfinished = 0

    def with_any(self, ids: Collection[int]) -> list[Request]:
        """Those that have a sample among sequences `ids`."""
        return [r for r in self if any(answer.sequence.id in ids for answer in r.answers)]

    def take(self, sequence: Sequence, emitted: Emitted, finish: Finish) -> None:
        """Put what a sample has emitted into the events of its request. Where that ends it,
        `finish` is called before the output is made.
        """
        request, answer = self._by_sequence[sequence.id]
        now = time.perf_counter()
        request.first_token = request.first_token or now
        delta, reason = answer.take(emitted)
        output = None
        if reason is not None:
            finish(sequence, reason)
            del self._by_sequence[sequence.id]
            request.unfinished -= 1
            output = self._output(request, now)
        request.events.append(Event(request.id, delta, output))

    def _output(self, request: Request, now: float) -> RequestOutput | None:
        if request.unfinished:
            return None
        assert request.first_token is not None
        del self._requests[request.id]
        return RequestOutput(
            request_id=request.id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_ids,
            outputs=[answer.output() for answer in request.answers],
            seed=request.seed,
            seconds=now - request.arrived,
            first_token_seconds=request.first_token - request.arrived,
        )

    def refuse_foreign_ids(self, prompt_ids: list[int], params: SamplingParams) -> None:
        """Raise UsageError for tokens that do not exist."""
        size = self._vocab_size
        named = {
            "the prompt": prompt_ids,
            "stop_token_ids": params.stop_token_ids,
            "logit_bias": params.logit_bias or (),
        }
        for name, ids in named.items():
            foreign = [token for token in ids if not 0 <= token < size]
            if foreign:
                raise UsageError(
                    f"{name} holds token {foreign[0]}",
                    f"the model's vocabulary ends at {size - 1}",
                    "use this model's own tokenizer for token ids",
                )
