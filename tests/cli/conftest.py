"""Running the command line inside the test's process and outside of it."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from alula.cli.main import run
from running import Alula, Finished, Process
from tiny import write_tiny_model


@pytest.fixture
def alula(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Alula]:
    """Call it with arguments, and with what standard input holds."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> Finished:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Finished(code, out, err)

    yield call
    gc.unfreeze()  # a process of its own would have ended


@pytest.fixture
def process() -> Process:
    """The command and environment of an alula of its own, to be started by the test."""
    command = [sys.executable, "-c", "from alula.cli.main import main; main()"]
    return command, os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its chat template."""
    folder = write_tiny_model(tmp_path_factory.mktemp("plain") / "model")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return folder
