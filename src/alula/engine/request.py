"""One sample of a request: its tokens, where its keys lie, and how it fared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from alula.sampling.params import SamplingParams

FinishReason = Literal["stop", "length", "abort"]


class Status(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    """It holds nothing: new, or preempted."""
    PREFILLING = auto()
    """It has a line and pages; known tokens are still to be computed, in chunks."""
    DECODING = auto()
    """All but its last token, the root, are computed; it takes part in every round."""
    FINISHED = auto()


@dataclass(eq=False)
class Sequence:
    """A prompt and its continuation. The scheduler alone changes the fields of the first block."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    key: int
    """Noise key, 64 bit."""

    token_ids: list[int] = field(init=False)
    """All known tokens, prompt and output."""
    computed: int = 0
    """Tokens whose keys are committed; the target's next row is at this position."""
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """Hash chain over the full pages of `token_ids`; while it decodes, over those computed."""
    line: int = -1
    """Its line in device tables while it runs; -1 while it has none."""
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None

    rounds: int = 0
    emitted: Counter[int] = field(default_factory=Counter)
    """Rounds by the number of tokens they emitted."""
    drafted: list[int] = field(default_factory=list)
    """Rounds that drafted to depth 1, 2, …; kept by the engine."""
    accepted: list[int] = field(default_factory=list)
    """Rounds that accepted depth 1, 2, …; kept by the engine."""
    preemptions: int = 0
    prefix_tokens: int = 0
    """Tokens found in the cache when the sequence first got a line."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        """The tokens after the prompt."""
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def running(self) -> bool:
        """Whether it holds a line and pages."""
        return self.line >= 0
