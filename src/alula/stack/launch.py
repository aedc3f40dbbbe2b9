"""A process in an environment, which stays in it whatever is switched later.

The link is resolved once, before the process begins: one started as `current/bin/python` would
import late from whichever environment the link leads to by then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from alula.errors import UsageError
from alula.stack import link
from alula.stack.holding import share
from alula.stack.places import Places
from alula.stack.records import Record, need_ready
from alula.stack.variables import Variables, variables


@dataclass(frozen=True, slots=True)
class Launch:
    """An environment that is held, and what a process in it is to be given."""

    record: Record
    variables: Variables
    held: int
    """An open descriptor that the process inherits; while it lives the environment does."""


def prepare(places: Places, name: str | None, environ: Mapping[str, str]) -> Launch:
    """Resolve an environment, the current one where none is named, and hold it.

    Raises UsageError where there is none, or it is not ready.
    """
    resolved = name or link.current(places)
    if resolved is None:
        raise UsageError(
            "there is no current environment",
            "nothing has been switched to",
            "alula stack switch NAME, or name one with --env",
        )
    need_ready(places, resolved)
    held = share(places, resolved)
    record = need_ready(places, resolved)  # it may have been removed before it was held
    os.set_inheritable(held, True)
    return Launch(record, variables(places, record, environ), held)
