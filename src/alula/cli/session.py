"""A model opened for a command, with its progress on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alula.engine.llm import LLM


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
) -> LLM:
    """Load a model behind progress bars. The sizes are refused before anything is loaded."""
    from alula.cli.console import messages, progress_bar
    from alula.engine.settings import Settings

    settings = Settings(
        max_sequences=max_sequences, max_length=max_length, cache_tokens=cache_tokens
    )
    with messages().status(f"opening {model}"):
        from alula.engine.llm import LLM

    return LLM(
        model,
        device=device,
        dtype=dtype,
        speculation=speculation,
        drafter=drafter,
        settings=settings,
        progress=progress_bar,
    )
