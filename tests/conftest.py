"""What tests of several floors share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny import write_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model with a chat template."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny")
