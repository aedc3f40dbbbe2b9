"""A stop that is asked for: work goes on to its next safe point."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether Ctrl-C or a termination was asked for. Asking twice stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def request(self, number: int, _frame: FrameType | None) -> None:
        """Note the wish."""
        if self.signal is not None:
            self.leave()
        self.signal = number

    def leave(self) -> None:
        """End as the signal would have, had nobody caught it. Without one: nothing."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


@contextmanager
def ending() -> Iterator[None]:
    """Within the block a termination raises SystemExit, so that what is to be recorded is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def heard() -> Iterator[Stop]:
    """Within the block a first Ctrl-C or termination only asks. Other threads hear none."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.request) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
