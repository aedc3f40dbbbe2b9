"""What tests of `alula stack plan` hand around."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from loopback_index import Site


class Told(NamedTuple):
    """One run of the command."""

    code: int
    out: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Ask = Callable[..., Told]
MACHINE = ("--machine", "8x-rtx-pro-6000", "--driver", "590.48.01", "--glibc", "2.35")


class February(NamedTuple):
    """The indexes of that month, and the owner's plan."""

    site: Site
    options: list[str]
    hand_made: Path
