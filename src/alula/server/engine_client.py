"""The HTTP process's side of the engine: it starts the process, talks to it and watches it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from alula.sampling.params import SamplingParams
from alula.server.heart import Heart
from alula.server.messages import (
    MOST_IN_FLIGHT,
    Abort,
    EngineOptions,
    Failed,
    FromEngine,
    Launched,
    Problem,
    Ready,
    Shutdown,
    Statistics,
    Submit,
)
from alula.server.streams import EngineError, Stream
from alula.text.chat_template import ChatTemplate
from alula.text.tokenizer import Tokenizer

_DUMP_SECONDS = 2.0
_GOODBYE_SECONDS = 5.0


class EngineClient:
    """One engine process after another, at most one at a time.

    `ready` is set while it can answer; `problem` says why it cannot, from the end of one until the
    next is ready.
    """

    def __init__(
        self, options: EngineOptions, hang_timeout: float, on_ready: Callable[[Ready], None]
    ) -> None:
        self.ready: Ready | None = None
        self.texts: tuple[Tokenizer, ChatTemplate | None] | None = None
        """How the model reads and writes text, once it is loaded."""
        self.problem: Problem | None = None
        self.statistics = Statistics()
        self.streams: dict[int, Stream] = {}
        self.restarts = 0
        self.was_ready = False
        """Whether the model has been loaded once."""
        self._on_ready = on_ready
        self.heart = Heart(hang_timeout)
        self._hang_timeout = hang_timeout
        self._hung = False
        self._options = options
        self._next_id = 0
        self._folder = Path(tempfile.mkdtemp(prefix="alula-"))
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def outstanding(self) -> int:
        """Samples that have been asked for and are not finished."""
        return sum(stream.total for stream in set(self.streams.values()))

    @property
    def pid(self) -> int | None:
        """The engine process, while there is one."""
        return self._process.pid if self._process else None

    def submit(self, prompts: list[list[int]], params: SamplingParams) -> Stream:
        """Ask for answers. Raises EngineError where no engine can give one."""
        if self.ready is None:
            raise EngineError(self.problem or _loading())
        ids = range(self._next_id, self._next_id + len(prompts))
        # Before anything else is touched: what cannot be sent fails the request alone.
        messages = [
            self._encode(Submit(number, prompt_ids, params))
            for number, prompt_ids in zip(ids, prompts, strict=True)
        ]
        self._next_id = ids.stop
        stream = Stream(ids, params.n, self._released)
        for number, message in zip(ids, messages, strict=True):
            self.streams[number] = stream
            self._outbox.put_nowait(message)
        return stream

    def _released(self, stream: Stream) -> None:
        for number in stream.ids:
            if self.streams.pop(number, None) and not stream.complete:
                self._outbox.put_nowait(self._encode(Abort(number)))

    async def run(self) -> Problem:
        """One engine process from start to end; returns why it ended."""
        socket = self._socket = self._context.socket(zmq.PAIR)
        socket.set_hwm(MOST_IN_FLIGHT)
        socket.linger = 0
        address = f"ipc://{self._folder}/engine-{self.restarts}"
        socket.bind(address)
        self._outbox = asyncio.Queue()
        self.heart = Heart(self._hang_timeout)
        tasks: list[asyncio.Task[Problem | None]] = []
        try:
            self._process = await self._spawn(address)
            ends = (self._receive(socket), self._exit(self._process))
            jobs = (*ends, self._watch(), self._send(socket))
            tasks = [asyncio.create_task(job) for job in jobs]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            problem = await self._reason(tasks, done)
        finally:
            for task in tasks:
                task.cancel()
            await self._end_process()
            socket.close()
        self._fall(problem)
        self.restarts += 1
        return problem

    async def _reason(
        self, tasks: list[asyncio.Task[Problem | None]], done: set[asyncio.Task[Problem | None]]
    ) -> Problem:
        """What the engine said before it ended goes before the fact that it ended."""
        receive, ended, *_ = tasks
        if done == {ended}:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(receive), 0.1)
        for task in tasks:
            if task.done() and (problem := task.result()) is not None:
                return problem
        raise AssertionError("an engine ended without a reason")

    def _fall(self, problem: Problem) -> None:
        """Nobody waits for an engine that is gone."""
        self.ready, self.problem = None, problem
        self.give_up(problem)

    def give_up(self, problem: Problem) -> None:
        """End all that is being answered with an error."""
        for stream in list(self.streams.values()):
            stream.fail(problem)

    async def _spawn(self, address: str) -> asyncio.subprocess.Process:
        options = msgspec.json.encode(self._options).decode()
        command = (sys.executable, "-m", "alula.server.engine_process")
        # A session of its own: Ctrl-C in the terminal asks the server, which drains.
        return await asyncio.create_subprocess_exec(
            *command, address, options, str(self._dump_path), start_new_session=True
        )

    @property
    def _dump_path(self) -> Path:
        return self._folder / f"stacks-{self.restarts}.txt"

    async def _send(self, socket: zmq.asyncio.Socket) -> Problem | None:
        while True:
            await socket.send(await self._outbox.get())

    async def _receive(self, socket: zmq.asyncio.Socket) -> Problem | None:
        while True:
            message = self._decode(await socket.recv())
            match message:
                case Ready():
                    self.texts = await asyncio.to_thread(message.vocabulary.unpack)
                    self.ready, self.was_ready, self.problem = message, True, None
                    self.heart.start()
                    self._on_ready(message)
                case Failed(ids=None):
                    return message.problem
                case Failed():
                    self._refuse(message)
                case Launched():
                    self._take(message)

    def _refuse(self, message: Failed) -> None:
        for number in message.ids or ():
            if stream := self.streams.get(number):
                stream.fail(message.problem)

    def _take(self, message: Launched) -> None:
        self.heart.beat()
        if message.statistics is not None:
            self.statistics = message.statistics
        for piece in message.pieces:
            if stream := self.streams.get(piece.id):
                stream.put(piece)

    async def _exit(self, process: asyncio.subprocess.Process) -> Problem:
        code = await process.wait()
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"code {code}"
        return Problem(
            "EngineDied",
            "the engine process has ended",
            f"process {process.pid} ended with {how}",
            "look at the server's log for what it said last; serve with --restart to start it anew",
        )

    async def _watch(self) -> Problem:
        """Wait until the heart has stopped, then save what every thread was doing."""
        await self.heart.stopped()
        problem = self.heart.problem()
        self._hung = True
        self._fall(problem)
        problem.why += f"; the stacks are in {await self._save_stacks()}"
        return problem

    async def _save_stacks(self) -> Path:
        """Ask the engine for its stacks; the folder keeps them, and this process's own."""
        import faulthandler

        with contextlib.suppress(OSError):
            with (self._folder / "stacks-http.txt").open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
            if self._process is not None:
                self._process.send_signal(signal.SIGUSR1)
                # One that was stopped writes its stacks when it goes on.
                self._process.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + _DUMP_SECONDS
            while time.monotonic() < deadline and not self._dump_path.stat().st_size:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
        return self._folder

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def shut_down(self) -> None:
        """Ask the engine to end, and end it where it does not."""
        process = self._process
        if process is not None and process.returncode is None:
            self._outbox.put_nowait(self._encode(Shutdown()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GOODBYE_SECONDS)
        await self._end_process()

    def close(self) -> None:
        """Let go of sockets and files, but for stacks that a hang has left."""
        self._context.destroy(linger=0)
        if not self._hung:
            shutil.rmtree(self._folder, ignore_errors=True)


def _loading() -> Problem:
    return Problem(
        "NotReady", "the model is being loaded", "the engine is not ready yet", "try again shortly"
    )
