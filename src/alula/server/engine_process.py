"""The engine's own process.

Started as `python -m alula.server.engine_process SOCKET OPTIONS STACKS`. It ends when it is told
to, or when the HTTP process is gone.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import traceback
from pathlib import Path

import msgspec

from alula.engine.heap import freeze_heap
from alula.engine.llm import LLM
from alula.server.engine_loop import Loop
from alula.server.link import Link
from alula.server.messages import EngineOptions, Failed, Problem, Ready, Vocabulary


def _open(options: EngineOptions) -> LLM:
    return LLM(
        options.model,
        device=options.device,
        dtype=options.dtype,
        speculation=options.speculation,
        drafter=options.drafter,
        max_sequences=options.max_sequences,
        max_length=options.max_length,
        cache_tokens=options.cache_tokens,
        graphs=options.graphs,
    )


def _ready(llm: LLM) -> Ready:
    return Ready(
        model=llm.model.source.name,
        max_length=llm.engine.max_length,
        max_sequences=llm.engine.scheduler.max_sequences,
        device=str(llm.model.decoder.device),
        notes=llm.notes,
        vocabulary=Vocabulary.of(llm.model.tokenizer, llm.model.chat_template),
    )


def main(address: str, options: EngineOptions, dump: Path) -> None:
    """Load, say so, and serve. SIGUSR1 writes every thread's stack to `dump`."""
    with dump.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        link = Link(address)
        try:
            llm = _open(options)
            freeze_heap()
            link.send(_ready(llm))
            Loop(llm.engine, link).run()
        except Exception as error:
            traceback.print_exception(error)
            link.send(Failed(None, Problem.of(error)))
        finally:
            link.close()


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=EngineOptions), Path(sys.argv[3]))
