"""Grammars of strangers are read in a process of their own first, and only then by the engine.

Some grammars take llguidance for ever, and long chains of rules overflow its stack, which ends the
process. A trial that ends badly costs one request; the next one starts a new process.

Started as `python -m alula.server.grammar_trial`. On its standard input: the vocabulary, then
grammars; on its standard output: an answer to each. All with their length in front.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from typing import IO

import msgspec

from alula.errors import AlulaError
from alula.sampling.compiler import GrammarCompiler
from alula.server.messages import Vocabulary

_SECONDS = 3.0
"""Of processor time that reading one grammar may take."""
_STACK_BYTES = 4 * 2**20
"""Half of what the engine's threads have, so that what passes here passes there."""
_KEPT = 256
_LENGTH = struct.Struct("<I")


class GrammarTrial:
    """One trial at a time, in a process that starts with the first."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._passed: OrderedDict[str, None] = OrderedDict()

    async def fault(self, grammar: str, vocabulary: Vocabulary) -> str | None:
        """What is wrong with a grammar, None where nothing is."""
        async with self._lock:
            if grammar in self._passed:
                return None
            fault = await self._tried(grammar.encode(), vocabulary)
            if fault is None:
                self._passed[grammar] = None
                while len(self._passed) > _KEPT:
                    self._passed.popitem(last=False)
            return fault

    async def _tried(self, grammar: bytes, vocabulary: Vocabulary) -> str | None:
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._started(vocabulary)
        # Until it has answered it is nobody's: whoever gives up waiting leaves no answer behind.
        self._process = None
        try:
            answer = await _asked(process, grammar)
        except (asyncio.IncompleteReadError, ConnectionError):
            return _end(await process.wait())
        except BaseException:
            process.kill()
            raise
        self._process = process
        return answer.decode() or None

    async def _started(self, vocabulary: Vocabulary) -> Process:
        command = (sys.executable, "-m", "alula.server.grammar_trial")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(_framed(msgspec.msgpack.encode(vocabulary)))
        return process

    async def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def _asked(process: Process, grammar: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(_framed(grammar))
    await process.stdin.drain()
    (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
    return await process.stdout.readexactly(length)


def _framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _end(code: int) -> str:
    if code == -signal.SIGVTALRM:
        return f"reading it takes longer than {_SECONDS:g} s"
    return f"reading it ends the process that does (code {code}): it is too deep or too large"


def main() -> None:
    """Answer until the input ends."""
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_answer, args=(sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()


def _answer(source: IO[bytes], target: IO[bytes]) -> None:
    given = _read(source)
    if given is None:
        return
    tokenizer, _ = msgspec.msgpack.decode(given, type=Vocabulary).unpack()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    while (grammar := _read(source)) is not None:
        target.write(_framed(_fault(compiler, grammar.decode()).encode()))
        target.flush()


def _fault(compiler: GrammarCompiler, grammar: str) -> str:
    """Empty where there is none. One that takes too long ends this process, whatever it does."""
    try:
        compiler.prepare()
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        compiler.compile(grammar)
    except AlulaError as error:
        return error.why
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


def _read(source: IO[bytes]) -> bytes | None:
    size = source.read(_LENGTH.size)
    return source.read(_LENGTH.unpack(size)[0]) if len(size) == _LENGTH.size else None


if __name__ == "__main__":
    main()
