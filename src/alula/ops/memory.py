"""Running out of memory, said so that somebody can do something about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from alula.errors import ResourceError

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")
_GIB = 1 << 30


@contextmanager
def memory_for(what: str, device: torch.device, fix: str, *, note: str = "") -> Iterator[None]:
    """Whoever runs out of memory in here is told for what, how much was asked for and is free, and
    which setting to lower (`fix`). `note`: what the memory depends on.

    Raises ResourceError.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_shortage(error):
            raise
        why = "; ".join(part for part in (note, _said(error), _free(device)) if part)
        raise ResourceError(f"no memory for {what}", why, fix) from error


def _is_shortage(error: Exception) -> bool:
    # The CPU's allocator has no error of its own.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "allocate memory" in str(error) or "alloc_cpu" in str(error)


def _said(error: Exception) -> str:
    asked = _ASKED.search(str(error))
    return f"{asked[1]} more were asked for" if asked else str(error).partition("\n")[0]


def _free(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f"{free / _GIB:.2f} of {total / _GIB:.2f} GiB are free on {device}"
