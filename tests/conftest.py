"""What tests of several floors share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tiny import write_tiny_model


@pytest.fixture(autouse=True, scope="session")
def few_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama with a byte-level tokenizer and a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
