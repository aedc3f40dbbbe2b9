"""What the HTTP process and the engine process say to each other, as MessagePack.

The engine sends one message per launch for all requests together, so that the number of streams
costs it little.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from alula.errors import AlulaError
from alula.sampling.params import SamplingParams
from alula.text.chat_template import ChatTemplate
from alula.text.definition import Definition
from alula.text.tokenizer import Tokenizer

MOST_IN_FLIGHT = 4096
"""Messages that a socket holds in each direction before the sender waits."""


class EngineOptions(msgspec.Struct, frozen=True):
    """What to load; the words of the command line."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    speculation: str = "auto"
    drafter: str | None = None
    max_sequences: int = 8
    max_length: int | None = None
    cache_tokens: int | None = None
    graphs: bool = True


class Submit(msgspec.Struct, tag="submit"):
    """Answer a prompt. `id` is chosen by the HTTP process and never used twice."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams


class Abort(msgspec.Struct, tag="abort"):
    """End a request at once; nothing more is said about it."""

    id: int


class Shutdown(msgspec.Struct, tag="shutdown"):
    """End the engine process."""


ToEngine: TypeAlias = Submit | Abort | Shutdown


class Vocabulary(msgspec.Struct):
    """A tokenizer and a chat template, as the engine has read them from the model."""

    tokenizer: str
    """The `tokenizers` library's JSON."""
    eos_ids: list[int]
    bos_id: int | None
    add_bos: bool
    template: str | None
    template_tokens: dict[str, str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate | None) -> Vocabulary:
        """Pack both for the way."""
        definition = tokenizer.definition
        return cls(
            tokenizer=definition.backend.to_str(),
            eos_ids=sorted(definition.eos_ids),
            bos_id=definition.bos_id,
            add_bos=definition.add_bos,
            template=template.source if template else None,
            template_tokens=dict(template.special_tokens) if template else {},
        )

    def unpack(self) -> tuple[Tokenizer, ChatTemplate | None]:
        """The same tokenizer and chat template."""
        import tokenizers

        backend = tokenizers.Tokenizer.from_str(self.tokenizer)
        definition = Definition(backend, frozenset(self.eos_ids), self.bos_id, self.add_bos)
        if self.template is None:
            return Tokenizer(definition), None
        return Tokenizer(definition), ChatTemplate(self.template, **self.template_tokens)


class Ready(msgspec.Struct, tag="ready"):
    """The model is loaded."""

    model: str
    max_length: int
    max_sequences: int
    device: str
    notes: list[str]
    vocabulary: Vocabulary


class Logprob(msgspec.Struct, array_like=True):
    """Log-probability of one token and of the likeliest ones."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class Finish(msgspec.Struct):
    """How a sample ended and how speculation fared."""

    reason: str
    stop_reason: str | int | None
    seed: int
    tokens: int
    prefix_tokens: int
    preemptions: int
    rounds: int
    emitted: int
    drafted: list[int]
    accepted: list[int]


class Piece(msgspec.Struct):
    """New text of one sample."""

    id: int
    index: int
    text: str
    token_ids: list[int]
    drafted: list[bool]
    """Of each token, whether it had been drafted."""
    logprobs: list[Logprob] | None
    finish: Finish | None


class Problem(msgspec.Struct):
    """An AlulaError on its way between processes."""

    kind: str
    what: str
    why: str
    fix: str
    exit_code: int = 1

    @classmethod
    def of(cls, error: Exception) -> Problem:
        """Pack an error; one that is not alula's own is named by its class."""
        if isinstance(error, AlulaError):
            kind = type(error).__name__
            return cls(kind, error.what, error.why, error.fix, error.exit_code)
        what = "the engine failed in a way it should not"
        fix = "report it, with the server's log"
        return cls("AlulaError", what, f"{type(error).__name__}: {error}", fix)

    @property
    def is_usage(self) -> bool:
        """Whether the request is at fault, and not the server."""
        return self.kind in ("UsageError", "LengthError")


class Failed(msgspec.Struct, tag="failed"):
    """Requests that the engine refuses or gives up; `ids` None: the engine itself ends."""

    ids: list[int] | None
    problem: Problem


class Statistics(msgspec.Struct):
    """The engine's counters and gauges."""

    waiting: int = 0
    running: int = 0
    pages: int = 0
    pages_in_use: int = 0
    pages_cached: int = 0
    prefix_lookups: int = 0
    prefix_hits: int = 0
    prefix_tokens: int = 0
    preemptions: int = 0
    launches: dict[str, int] = {}
    """By way: captured, or what stood in the way of that."""
    prompt_rows: int = 0
    tokens: int = 0
    rounds: int = 0
    """Rounds of all sequences."""
    round_tokens: int = 0
    """Tokens they emitted."""
    rounds_by_nodes: dict[int, int] = {}
    """Rounds by draft nodes verified, averaged over the sequences of a launch."""


class Launched(msgspec.Struct, tag="launched"):
    """A launch has finished, or (`launch` False) the engine has nothing to do and is alive."""

    launch: bool
    pieces: list[Piece]
    statistics: Statistics | None


FromEngine: TypeAlias = Ready | Failed | Launched
