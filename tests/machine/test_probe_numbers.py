"""What probes hold numbers against, as far as a CPU shows it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import alula.machine.probing as probing


def load(name: str) -> ModuleType:
    path = Path(probing.__file__).with_name("probes") / f"{name}_probe.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_right_product_agrees() -> None:
    assert load("kernel").matmul(torch, "cpu") is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(0.0, None), (0.5, "off by"), (float("nan"), "not finite"), (float("inf"), "not finite")],
)
def test_one_wrong_value_is_seen(spoil: float, said: str | None) -> None:
    expected = torch.randn(64, 64)
    found = expected.clone()
    found[3, 5] += spoil * expected.abs().max()
    wrong = load("kernel").far_off(torch, found, expected, 1e-2)
    assert (wrong is None) if said is None else (said in wrong)


def test_an_output_left_as_it_was_is_seen() -> None:
    assert "off by" in load("kernel").far_off(torch, torch.zeros(8), torch.ones(8), 1e-2)


@pytest.mark.parametrize("world", [2, 8, 16])
def test_the_sum_of_a_collective_is_exact_in_every_order(world: int) -> None:
    collective = load("collective")
    for size in collective.ELEMENTS[:3]:
        ranks = [collective.rank_values(torch, rank, size) for rank in range(world)]
        expected = collective.expected_sum(torch, world, size)
        assert torch.equal(expected, expected.to(torch.bfloat16).float())
        assert not torch.equal(ranks[0], ranks[1])
        total = ranks[-1].clone()
        for rank in ranks[-2::-1]:
            total += rank
        assert torch.equal(total.float(), expected)
