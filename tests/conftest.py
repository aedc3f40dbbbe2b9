"""What tests of several floors share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

# Read when Triton is first imported: without a GPU its kernels run in its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

from tiny import write_tiny_model

# A shell that starts this in the background has it ignore Ctrl-C, and all processes it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests run side by side, one to a core; threads that wait for each other's cores crawl."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama with a byte-level tokenizer and a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
