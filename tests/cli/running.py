"""What a finished command line looks like to a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Finished(NamedTuple):
    code: int
    out: str
    err: str


Alula = Callable[..., Finished]
Process = tuple[list[str], dict[str, str]]
"""A command and its environment."""
