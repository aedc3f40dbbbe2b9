"""Connections that do not get to the point are closed, so that they hold no file for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP, where the head of a request has to come within a time.

    uvicorn itself waits for ever for the rest of a head, and bounds only the silence after an
    answer. Bodies have a time of their own (`gate`).
    """

    head_seconds = 30.0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time begins."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Bytes that do not complete a head give it no more time."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end()
        elif self._patience is None:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._patience = self.loop.call_later(self.head_seconds, self.transport.close)

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
