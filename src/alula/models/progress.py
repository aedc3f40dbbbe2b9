"""How loading tells what it is doing, without knowing who shows it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self


class Task(Protocol):
    """Work under way."""

    def advance(self, amount: int) -> None:
        """`amount` more of the total is done."""


class Progress(Protocol):
    """Announces work of `total` units (bytes) and returns what to report its advance to."""

    def __call__(self, description: str, total: int) -> AbstractContextManager[Task]:
        """Start showing one piece of work; leaving the context ends it."""


class Silent:
    """Progress that nobody watches."""

    def __call__(self, description: str, total: int) -> Silent:
        """Say nothing."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End nothing."""

    def advance(self, amount: int) -> None:
        """Count nothing."""
