"""How large the engine is: sequences, cache and launches."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from alula.errors import UsageError

_LARGEST_DEFAULT = 16384
_LARGEST = 2**40
_BOUNDS = {
    "max_sequences": (1, 1024),
    "max_length": (2, _LARGEST),
    "cache_tokens": (2, _LARGEST),
    "chunk_rows": (1, _LARGEST),
    "page_size": (16, _LARGEST),  # from where on attention is exact (`ops.attention`)
}
_LEFT_TO_THE_MACHINE = ("max_length", "cache_tokens")
_SHARE_OF_FREE_MEMORY = {"cpu": 0.25, "cuda": 0.8}


@dataclass(frozen=True)
class Settings:
    """What a user may set; None lets the machine decide.

    Raises UsageError for a size that is no whole number or below its least.
    """

    max_sequences: int = 8
    """Sequences that run side by side; others wait."""
    max_length: int | None = None
    """Tokens of prompt and answer; None: what model and cache allow."""
    cache_tokens: int | None = None
    """Tokens whose keys are kept; None: a share of the free memory."""
    chunk_rows: int = 256
    """Prompt tokens computed in one launch at most."""
    page_size: int = 32
    """Tokens in a page, the grain of prefix reuse; at least 16."""
    prefix_cache: bool = True
    """Reuse the keys of prompts that begin alike."""
    graphs: bool = True
    """Capture rounds as CUDA graphs, on a GPU."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None or name not in _LEFT_TO_THE_MACHINE:
                _whole(name, value, least, most)


@dataclass(frozen=True)
class Capacity:
    """The sizes in force."""

    pages: int
    max_length: int


def capacity(
    settings: Settings,
    *,
    positions: int,
    round_rows: int,
    bytes_per_token: int,
    device: torch.device,
) -> Capacity:
    """Fit the cache into memory and the context into the cache.

    `positions`: the model's context; `round_rows`: 1 + draft nodes, which need room beyond it.
    Raises UsageError where a maximum length does not fit.
    """
    spare = 2 * round_rows + settings.page_size
    wanted = settings.max_length or min(positions, _LARGEST_DEFAULT)
    if wanted > positions:
        raise UsageError(
            f"max_length {wanted} is beyond the model's context",
            f"the model was made for {positions} positions",
            f"set max_length to at most {positions}",
        )
    tokens = settings.cache_tokens or min(
        _LARGEST_DEFAULT + spare, int(_free_bytes(device) / bytes_per_token), 4 * (wanted + spare)
    )
    pages = tokens // settings.page_size
    longest = pages * settings.page_size - spare
    if settings.max_length is not None and longest < settings.max_length:
        raise UsageError(
            f"a context of {settings.max_length} tokens does not fit the cache",
            f"the cache holds {pages} pages of {settings.page_size} tokens, and a round needs "
            f"{spare} beyond the context",
            f"set cache_tokens to at least {settings.max_length + spare}, or lower max_length",
        )
    if longest < 2:
        raise UsageError(
            f"a cache of {tokens} tokens is too small",
            f"a round of {round_rows} rows alone needs {spare}",
            f"set cache_tokens to at least {spare + 2}",
        )
    return Capacity(pages, min(wanted, longest))


def _free_bytes(device: torch.device) -> float:
    share = _SHARE_OF_FREE_MEMORY[device.type]
    if device.type == "cuda":
        return share * float(torch.cuda.mem_get_info(device)[0])
    return share * psutil.virtual_memory().available


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(
            f"{name} cannot be {value!r}",
            f"it must be a whole number from {least} to {most}",
            f"give {name} a value it allows, or leave it out",
        )
