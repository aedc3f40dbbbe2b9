"""A model opened for a command, with its progress on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from alula.cli.console import messages, progress_bar
from alula.cli.interrupt import interruptible

if TYPE_CHECKING:
    from alula.engine.llm import LLM
    from alula.models.load import LoadedModel


def open_llm(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    speculation: str = "auto",
    drafter: Path | None = None,
    max_sequences: int = 8,
    max_length: int | None = None,
    cache_tokens: int | None = None,
    graphs: bool = True,
) -> LLM:
    """Load a model behind progress bars. The sizes are refused before anything is loaded."""
    with opening(model):
        from alula.engine.heap import freeze_heap
        from alula.engine.llm import LLM
        from alula.engine.settings import Settings

    settings = Settings(
        max_sequences=max_sequences,
        max_length=max_length,
        cache_tokens=cache_tokens,
        graphs=graphs,
    )
    llm = LLM(
        model,
        device=device,
        dtype=dtype,
        speculation=speculation,
        drafter=drafter,
        settings=settings,
        progress=progress_bar,
    )
    freeze_heap()
    return llm


def load_model(model: str, device: str, dtype: str) -> LoadedModel:
    """Load a model alone, for several engines over it."""
    with opening(model):
        from alula.engine.llm import device_named
        from alula.models.load import load

    return load(model, device_named(device), dtype, progress_bar)


@contextmanager
def opening(model: str) -> Iterator[None]:
    """Importing torch takes seconds, so something should move.

    Ctrl-C is heard afterwards: in the middle of an import torch swallows it, or takes it for an
    import that failed.
    """
    with messages().status(f"opening {model}"), interruptible() as interrupt:
        yield
    if interrupt.requested:
        raise KeyboardInterrupt
