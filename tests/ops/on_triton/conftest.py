"""Kernels run on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

# Triton is for Linux alone.
collect_ignore_glob = [] if find_spec("triton") else ["test_*"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(params=["float32", "16 bit"])
def dtype(request: pytest.FixtureRequest, device: torch.device) -> torch.dtype:
    """Of 16 bits the interpreter can do float16 alone."""
    if request.param == "float32":
        return torch.float32
    return torch.bfloat16 if device.type == "cuda" else torch.float16
