"""Whether the engine is alive: launches finish while work waits, and an idle engine says so."""

from __future__ import annotations

import asyncio
import time

from alula.server.messages import Problem

_TICK_SECONDS = 0.25


class Heart:
    """Counts the seconds since the engine's last sign of life.

    Only the ticks of this process count, so that a machine that slept, or a server that was itself
    stopped, does not take its own absence for the engine's.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds without a sign, after which the heart has stopped."""
        self.timeout = timeout
        self._silent = 0.0
        self._started = False

    def start(self) -> None:
        """From now on signs are expected."""
        self._silent, self._started = 0.0, True

    def beat(self) -> None:
        """The engine finished a launch, or says that it has nothing to do."""
        self._silent = 0.0

    @property
    def red(self) -> bool:
        """Whether it has stopped."""
        return self._silent >= self.timeout

    async def stopped(self) -> None:
        """Return once it has stopped."""
        tick = min(_TICK_SECONDS, self.timeout / 8)
        before = time.monotonic()
        while not self.red:
            await asyncio.sleep(tick)
            now = time.monotonic()
            if self._started:
                self._silent += min(now - before, 2 * tick)
            before = now

    def problem(self) -> Problem:
        """What to tell those who wait."""
        return Problem(
            "EngineHangs",
            "the engine hangs",
            f"it has finished no launch and given no sign of life for {self.timeout:g} s",
            "send the saved stacks with a report; a larger --hang-timeout allows longer launches",
        )
