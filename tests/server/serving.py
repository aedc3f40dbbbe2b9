"""A server of its own for a test: the whole command, in its own process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import httpx
import openai
import psutil

START_SECONDS = 120.0


class ServerProcess:
    """`alula serve MODEL` with options, started and ready; killed when the block ends."""

    def __init__(self, model: str | Path, *options: str) -> None:
        self._errors = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115  read until the end
        command = [sys.executable, "-c", "from alula.cli.main import main; main()", "serve"]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "COLUMNS": "1000",
        }
        self.process = subprocess.Popen(
            [*command, str(model), "--name", "model", "--port", "0", *options],
            stderr=self._errors,
            env=environment,
        )
        self.url = ""

    def __enter__(self) -> ServerProcess:
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"serving model at (http://\S+)", self.said())):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        self.url = found[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                child.kill()
        self.process.kill()
        self.process.wait()
        self._errors.close()

    def said(self) -> str:
        """What it wrote to standard error."""
        return Path(self._errors.name).read_text("utf-8")

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        children = psutil.Process(self.process.pid).children()
        (engine,) = [each for each in children if "alula.server.engine_process" in each.cmdline()]
        return engine

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def metric(self, name: str) -> float:
        """The sum of all samples of a metric."""
        lines = self.get("/metrics").text.splitlines()
        values = [line.split()[-1] for line in lines if re.match(rf"{name}(_total)?[{{ ]", line)]
        assert values, f"there is no metric {name}"
        return sum(map(float, values))

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def wait_for(condition, seconds: float, what: str) -> float:  # type: ignore[no-untyped-def]
    """Until `condition()` is true; returns the seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"{what} did not come within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - started


def events(response: httpx.Response) -> Iterator[str]:
    """The data of server-sent events."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
