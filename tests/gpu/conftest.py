"""Tests that need an NVIDIA GPU: `make test-gpu`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from alula.bench.random_weights import SMOLLM2, random_decoder
from alula.models.decoder import Decoder

# They are about Triton's kernels.
collect_ignore_glob = [] if find_spec("triton") else ["test_*"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def smollm2(device: torch.device) -> Decoder:
    """SmolLM2's shape with 6 layers of random weights."""
    return random_decoder(SMOLLM2, device, layers=6)
