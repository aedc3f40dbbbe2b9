"""The engine's end of the socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import msgspec
import zmq

from alula.server.messages import MOST_IN_FLIGHT, FromEngine, ToEngine


class Link:
    """Sending waits while the HTTP process is behind."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(MOST_IN_FLIGHT)
        self._socket.sndtimeo = 1000
        self._socket.linger = 1000
        self._socket.connect(address)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._parent = os.getppid()

    def send(self, message: FromEngine) -> None:
        """Send one message; SystemExit where nobody is left to read it."""
        data = self._encode(message)
        while True:
            self.refuse_to_be_orphaned()
            try:
                return self._socket.send(data)
            except zmq.Again:
                continue

    def receive(self, milliseconds: int) -> Iterator[ToEngine]:
        """All messages that have come, waiting so long for the first."""
        if not self._socket.poll(milliseconds):
            return
        while True:
            try:
                yield self._decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return

    def refuse_to_be_orphaned(self) -> None:
        """Raise SystemExit where the HTTP process is gone."""
        if os.getppid() != self._parent:
            sys.exit(0)

    def close(self) -> None:
        """Send what is under way, for at most a second, and let go."""
        self._socket.close()
        self._context.term()
