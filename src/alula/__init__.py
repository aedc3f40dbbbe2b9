"""Lossless speculative decoding that pays on the machine it runs on.

`import alula` stays light: torch is loaded when `LLM` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alula.engine.llm import LLM as LLM
    from alula.sampling.params import SamplingParams as SamplingParams

    __version__: str

__all__ = ["LLM", "SamplingParams", "__version__"]

_HOMES = {"LLM": "alula.engine.llm", "SamplingParams": "alula.sampling.params"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("alula")
    if name not in _HOMES:
        raise AttributeError(f"module 'alula' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
