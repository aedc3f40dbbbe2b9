"""What stands before every route: API keys, and the size and the time of bodies."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from alula.server.refusals import RequestError

_OPEN_PATHS = ("/", "/health", "/ready")


class Gate:
    """Refuses a request before any of its body is read."""

    def __init__(
        self,
        app: ASGIApp,
        api_keys: Sequence[str],
        most_bytes: int,
        note: Callable[[str, int, str], None],
        body_seconds: float = 60.0,
    ) -> None:
        """`note` is told the path, the status and the reason of a refusal; `body_seconds`: how long
        a body may take to come."""
        self._app = app
        self._keys = [key.encode() for key in api_keys]
        self._most_bytes = most_bytes
        self._note = note
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            self._note(scope["path"], refusal.status, str(refusal))
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _refusal(self, path: str, headers: Headers) -> RequestError | None:
        if self._keys and path not in _OPEN_PATHS and not self._knows(headers):
            message = "this server wants one of its API keys, as Authorization: Bearer KEY"
            challenge = {"WWW-Authenticate": "Bearer"}
            return RequestError(401, message, code="invalid_api_key", headers=challenge)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most_bytes:
            return RequestError(413, self._too_large(), code="request_too_large")
        return None

    def _knows(self, headers: Headers) -> bool:
        """All keys are compared, each in constant time, so that time tells nothing about them."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        matches = [hmac.compare_digest(given.strip().encode(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)

    def _counted(self, receive: Receive) -> Receive:
        """A body that does not say its length is counted as it comes, and has to come in time."""
        seen, whole = 0, False
        deadline = asyncio.get_running_loop().time() + self._body_seconds

        async def counting() -> Message:
            nonlocal seen, whole
            try:
                # What comes after the body is the client's going, for which nobody hurries.
                async with asyncio.timeout_at(None if whole else deadline):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, self._too_slow(), {"Connection": "close"}) from error
            whole = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self._most_bytes:
                raise HTTPException(413, self._too_large())
            return message

        return counting

    def _too_slow(self) -> str:
        return f"the body did not come within {self._body_seconds:g} s"

    def _too_large(self) -> str:
        return f"the body is larger than the {self._most_bytes} bytes that this server takes"
