"""How a plan tells what it is doing, without knowing who shows it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Task(Protocol):
    """Work under way."""

    def advance(self, amount: int, /) -> None:
        """`amount` more of the total is done."""


class Progress(Protocol):
    """Announces work of `total` units, 0 where that is not known beforehand.

    What it returns is told of the advance.
    """

    def __call__(self, description: str, total: int, /) -> AbstractContextManager[Task]:
        """Start showing one piece of work; leaving the context ends it."""


class _Unwatched:
    def advance(self, _amount: int, /) -> None:
        pass


def silent(_description: str, _total: int, /) -> AbstractContextManager[Task]:
    """Progress that nobody watches."""
    return nullcontext(_Unwatched())
