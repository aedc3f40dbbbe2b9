"""Running out of memory, said so that somebody can do something about it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from alula.errors import ShortageError

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")
_GIB = 1 << 30
_SAYINGS = ("out of memory", "allocate memory", "alloc_cpu", "ALLOC_FAILED")
"""How those say it that have no error of their own: CUDA's runtime and Triton's driver, the CPU's
allocator and its mappings, cuBLAS.
"""


@contextmanager
def memory_for(what: str, device: torch.device, fix: str, *, note: str = "") -> Iterator[None]:
    """Whoever runs out of memory in here is told for what, how much was asked for and is free, and
    which setting to lower (`fix`). `note`: what the memory depends on.

    Raises ShortageError.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        shortage = _shortage(error)
        if shortage is None:
            raise
        why = "; ".join(part for part in (note, _said(shortage), _free(device)) if part)
        raise ShortageError(f"no memory for {what}", why, fix) from error


def _shortage(error: BaseException | None) -> BaseException | None:
    """What first ran out of memory, of an error and those in whose wake it came: where a capture
    runs out, its end fails as well.
    """
    while error is not None and not _is_shortage(error):
        error = error.__cause__ or error.__context__
    return error


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAYINGS)


def _said(error: BaseException) -> str:
    asked = _ASKED.search(str(error))
    return f"{asked[1]} more were asked for" if asked else str(error).partition("\n")[0]


def _free(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f"{free / _GIB:.2f} of {total / _GIB:.2f} GiB are free on {device}"
