"""What a request's reader has not taken yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from alula.errors import AlulaError
from alula.server.messages import Piece, Problem

_TOO_COMPLEX = Problem(
    "UsageError",
    "the grammar cannot be followed any further",
    "it became too complex at this point of the answer",
    "simplify the schema or the grammar",
)


class EngineError(AlulaError):
    """The engine refused a request or gave it up."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what, problem.why, problem.fix)
        self.problem = problem


class Stream:
    """The way back from the engine, for all samples of all prompts of one HTTP request.

    Sample s of prompt p has the index p * samples + s. It never holds the engine up: what a slow
    reader leaves is joined to one piece per sample, and takes no more room than the answer.
    """

    def __init__(self, ids: range, samples: int, release: Callable[[Stream], None]) -> None:
        """`ids`: what the engine calls each prompt; `samples` of each are asked for."""
        self.ids = ids
        self.total = len(ids) * samples
        self._samples = samples
        self._release = release
        self._unfinished = self.total
        self._pending: dict[int, Piece] = {}
        self._problem: Problem | None = None
        self._changed = asyncio.Event()

    def put(self, piece: Piece) -> None:
        """Take a piece from the engine."""
        if piece.finish is not None and piece.finish.reason == "abort":
            self.fail(_TOO_COMPLEX)
            return
        piece.index += self.ids.index(piece.id) * self._samples
        before = self._pending.get(piece.index)
        self._pending[piece.index] = piece if before is None else _joined(before, piece)
        self._unfinished -= piece.finish is not None
        self._changed.set()
        if not self._unfinished:
            self._release(self)

    def fail(self, problem: Problem) -> None:
        """End it with an error, which its reader gets after what came before."""
        self._problem = problem
        self._changed.set()
        self._release(self)

    def close(self) -> None:
        """Its reader is gone, or has all."""
        self._release(self)

    @property
    def complete(self) -> bool:
        """Whether all samples are finished."""
        return self._unfinished == 0

    @property
    def failure(self) -> EngineError | None:
        """What the engine said instead of finishing."""
        return EngineError(self._problem) if self._problem else None

    async def pieces(self) -> AsyncIterator[Piece]:
        """All pieces in order; raises EngineError where the engine does not finish."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            taken, self._pending = self._pending, {}
            ended = self.complete or self._problem is not None
            for piece in taken.values():
                yield piece
            if ended:
                break
        if self.failure is not None:
            raise self.failure


def _joined(first: Piece, then: Piece) -> Piece:
    logprobs = None if then.logprobs is None else [*(first.logprobs or []), *then.logprobs]
    return Piece(
        id=first.id,
        index=first.index,
        text=first.text + then.text,
        token_ids=first.token_ids + then.token_ids,
        drafted=first.drafted + then.drafted,
        logprobs=logprobs,
        finish=then.finish,
    )
