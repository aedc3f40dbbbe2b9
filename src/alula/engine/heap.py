"""Python's garbage collector while rounds run.

A full collection looks at every object there is. With torch loaded these are hundreds of thousands:
two or three hundred milliseconds, in which no round is launched.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_heap() -> None:
    """From now on the collector looks only at what is made after this.

    For a process whose model is loaded and which only answers from here on: what is frozen is
    never freed by the collector.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def frozen_heap() -> Iterator[None]:
    """The same for a while; where something is frozen already that stays so."""
    was_frozen = gc.get_freeze_count() > 0
    freeze_heap()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
