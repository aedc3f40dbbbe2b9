"""What training computes on a GPU, in Triton's interpreter: as on the CPU."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tiny_models
from alula.models.load import load
from alula.ops.kernels import Kernels
from alula.speculation.eagle3_checkpoint import random_checkpoint
from alula.training.network import DraftNetwork, Teacher, weighted
from alula.training.target import DenseTarget

pytestmark = pytest.mark.skipif(
    not find_spec("triton") or torch.cuda.is_available(), reason="Triton's interpreter is on"
)
HIDDEN, VOCABULARY, DRAFT, STEPS = 32, 40, 24, 3


@pytest.fixture
def forms() -> Kernels:
    import alula.ops.triton

    return alula.ops.triton


def _gradients(network: DraftNetwork) -> list[Tensor]:
    dice = torch.Generator().manual_seed(3)
    table = torch.randn(VOCABULARY, HIDDEN, generator=dice)
    tokens = torch.randint(VOCABULARY, (2, 9), generator=dice)
    features = torch.randn(2, 8, 3 * HIDDEN, generator=dice)
    sequences, places = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 3, 7, 2, 6])
    law = torch.randn(5, DRAFT, generator=dice).softmax(-1)
    teacher = Teacher(sequences, places, law, torch.tensor([3, -1, 8, 0, 23]), 1)
    network.zero_grad()
    losses = network.losses(features, tokens, table.__getitem__, teacher, STEPS)
    weighted(losses).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return [torch.stack([part.loss for part in losses]).detach(), *filter(_exists, gradients)]


def _exists(gradient: Tensor | None) -> bool:
    assert gradient is not None
    return True


def test_losses_and_gradients(forms: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = random_checkpoint(
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        layers=10,
        heads=4,
        kv_heads=2,
        draft_vocab_size=DRAFT,
        dtype=torch.float32,
    )
    network = DraftNetwork(checkpoint.config)
    state = {n: t for n, t in checkpoint.tensors.items() if n not in ("d2t", "t2d")}
    network.load_state_dict(state)
    expected = [part.clone() for part in _gradients(network)]
    for module in ("differentiable", "attention"):
        monkeypatch.setattr(f"alula.training.{module}.kernels_for", lambda _: forms)
    for found, wanted in zip(_gradients(network), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_features_of_the_target(forms: Kernels, tmp_path: Path) -> None:
    tiny_models.make("qwen3", num_hidden_layers=3).save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    decoder = load(str(tmp_path), dtype="float32").decoder
    ids = torch.stack([tiny_models.ids(12, seed=line) for line in range(3)])
    expected = DenseTarget(decoder).features(ids, (1, 2))
    decoder.kernels = forms
    found = DenseTarget(decoder).features(ids, (1, 2))
    torch.testing.assert_close(found.aux, expected.aux, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.last, expected.last, atol=1e-5, rtol=1e-4)
