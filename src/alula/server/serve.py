"""A server from start to end: the socket, the engine process, signals and draining."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from alula.errors import AlulaError, MachineError, UsageError
from alula.models.progress import Progress, silent
from alula.server.app import make_app
from alula.server.engine_client import EngineClient
from alula.server.messages import EngineOptions, Problem, Ready
from alula.server.patience import PatientProtocol
from alula.server.request_log import RequestLog, open_log
from alula.server.service import Limits, Service

_PORTS = 1 << 16
_RESTART_SECONDS = 1.0
_TICK_SECONDS = 0.05
_LAST_SECONDS = 2
"""For the last words to those who were cut off."""


@dataclass(frozen=True)
class ServerOptions:
    """What `alula serve` is given beside the engine's options."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    """What clients call the model; None: what the command line calls it."""
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    hang_timeout: float = 30.0
    drain_timeout: float = 30.0
    restart: bool = False
    log_file: Path | None = None

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key.isascii() or not key.isprintable() or not key or " " in key:
                raise UsageError(
                    f"{key!r} cannot be an API key",
                    "it is sent in an HTTP header, where it is one word of ASCII",
                    "leave it out, or choose a key of letters and digits",
                )


class ServingError(AlulaError):
    """The engine ended in a way that ends the server."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what, problem.why, problem.fix)
        self.exit_code = problem.exit_code  # type: ignore[misc]


def serve(
    engine: EngineOptions,
    options: ServerOptions,
    say: Callable[[str], None],
    progress: Progress = silent,
) -> None:
    """Serve until SIGTERM or SIGINT. `say` shows a line to the person at the terminal, `progress`
    that a model is being loaded.

    Raises MachineError where the address cannot be had, and ServingError where the model cannot
    be loaded or the engine hangs.
    """
    listener = _listen(options.host, options.port)
    with listener:
        asyncio.run(Server(engine, options, say, listener, progress).run())


def _listen(host: str, port: int) -> socket.socket:
    """Before the model is loaded, which may take minutes."""
    if not 0 <= port < _PORTS:
        rule = f"a port is a number from 0 to {_PORTS - 1}"
        raise UsageError(f"there is no port {port}", rule, "choose another --port")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        fix = "choose another --host, or a port you may listen on"
        raise MachineError(
            f"cannot listen on {host}:{port}",
            getattr(error, "strerror", None) or str(error),
            "choose another --port, or end what listens there" if taken else fix,
        ) from error


class Server:
    """One HTTP server and its engine."""

    def __init__(
        self,
        engine: EngineOptions,
        options: ServerOptions,
        say: Callable[[str], None],
        listener: socket.socket,
        progress: Progress,
    ) -> None:
        self._options = options
        self._say = say
        self._progress = progress
        self._loading = contextlib.ExitStack()
        self._listener = listener
        self._model = engine.model
        self._client = EngineClient(engine, options.hang_timeout, self._ready)
        log = RequestLog(open_log(options.log_file) if options.log_file else sys.stderr)
        name = options.name or engine.model
        self._service = Service(self._client, name, options.limits, log)
        self._stop = asyncio.Event()
        self._stopping = False
        self._http = _Http(self._configuration(), self._on_signal)

    def _configuration(self) -> uvicorn.Config:
        options = self._options
        app = make_app(self._service, options.api_keys, options.limits.body_bytes)
        if options.cors_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(options.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
            )
        return uvicorn.Config(
            app,
            http=PatientProtocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_LAST_SECONDS,
        )

    async def run(self) -> None:
        """Until a signal has ended it, or the engine has."""
        http = asyncio.create_task(self._http.serve([self._listener]))
        engine = asyncio.create_task(self._keep_engine())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((http, engine, stop), return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                await self._drain()
        finally:
            self._stopping = True
            await self._client.shut_down()
            self._http.should_exit = True
            await http
            for task in (engine, stop):
                task.cancel()
            await asyncio.gather(engine, stop, return_exceptions=True)
            self._client.close()
            await self._service.trial.close()
        if not engine.cancelled() and (failure := engine.exception()):
            raise failure

    async def _keep_engine(self) -> None:
        """One engine process after another; raises ServingError where there shall be no next."""
        while True:
            with self._loading:
                self._loading.enter_context(self._progress(f"loading {self._model}", 0))
                problem = await self._client.run()
            if self._stopping:
                return
            self._say(f"engine: {problem.what}: {problem.why}")
            self._service.log.write(event="engine_ended", what=problem.what, why=problem.why)
            if not self._client.was_ready:
                raise ServingError(problem)
            if not self._options.restart:
                if problem.kind == "EngineHangs":
                    raise ServingError(problem)
                await self._stop.wait()
                return
            await asyncio.sleep(_RESTART_SECONDS)

    def _ready(self, ready: Ready) -> None:
        self._loading.close()
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._say(f"serving {self._service.model_name} at http://{shown}:{port}")
        for note in ready.notes:
            self._say(note)

    def _on_signal(self) -> None:
        """The first asks to drain, the second to end at once."""
        if self._stop.is_set():
            self._http.force_exit = True
        self._service.draining = True
        self._stop.set()

    async def _drain(self) -> None:
        """Let running answers finish and be read, as long as they may."""
        self._say("draining: no new requests; running answers finish")
        deadline = time.monotonic() + self._options.drain_timeout
        while self._service.under_way and time.monotonic() < deadline and not self._http.force_exit:
            await asyncio.sleep(_TICK_SECONDS)
        # What a slow reader's socket still holds has the rest of the time.
        left = max(_LAST_SECONDS, int(deadline - time.monotonic()))
        self._http.config.timeout_graceful_shutdown = left
        self._client.give_up(
            Problem(
                "ShuttingDown",
                "the server is shutting down",
                f"the answer was not finished within {self._options.drain_timeout:g} s",
                "ask again later, or serve with a longer --drain-timeout",
            )
        )
        await asyncio.sleep(_TICK_SECONDS)


class _Http(uvicorn.Server):
    """uvicorn whose signals ask for draining and leave the exit code alone."""

    def __init__(self, configuration: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(configuration)
        self._on_signal = on_signal

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Within the block SIGINT and SIGTERM drain."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
