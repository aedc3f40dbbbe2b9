"""Measurements published by others, none of which the constants were fitted to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from alula.cost.calibrate import fit
from alula.cost.draft import chain
from alula.cost.formats import FORMATS
from alula.cost.measured import read_measured
from alula.cost.shape import Component
from priced import setting

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
GPT_FAST = EXAMPLES / "measured-gpt-fast-a100.json"
OWN_STEPS = EXAMPLES / "measured-steps-h200.json"


def test_kimi_k26_plain_on_8_rtx_pro_6000() -> None:
    """local-inference-lab/rtx6kpro, kimi-k26-v4: 92.4 tok/s; the same sizes as K2.5."""
    assert setting().plain_tok_s() == pytest.approx(92.4, rel=0.15)


def test_the_kimi_k26_round_leaves_host_time_to_explain() -> None:
    """122.0 tok/s at 2.48 tokens a round: 20.3 ms, of which the model sees about 16.4."""
    predicted_ms = setting(host_s=0.0).round(chain(3)).total_s * 1e3
    assert predicted_ms == pytest.approx(16.4, rel=0.04)
    assert 3.5 < 2.48 / 122.0 * 1e3 - predicted_ms < 5


@pytest.mark.parametrize(
    ("layout", "rows", "measured_us"),
    [
        ("tp", 8, 151),
        ("tp", 16, 259),
        ("tp", 32, 377),
        ("tp", 64, 561),
        ("ep", 8, 209),
        ("ep", 16, 335),
        ("ep", 32, 436),
        ("ep", 64, 674),
    ],
)
def test_marlin_expert_kernels(layout: str, rows: int, measured_us: float) -> None:
    """aiconfigurator-core 0.12, sglang_marlin_moe on one RTX PRO 6000, 384 experts, one layer."""
    own = setting(layout=layout)
    experts = {part.component: part for part in own.step(rows).parts}[Component.EXPERTS]
    two_products_s = 2 * own.speed.constants.launch_s
    predicted_us = (experts.memory_s / own.shape.expert_layers + two_products_s) * 1e6
    assert predicted_us == pytest.approx(measured_us, rel=0.15)


@pytest.mark.parametrize(("weights", "measured_tok_s"), [("bf16", 104.9), ("int8", 155.6)])
def test_gpt_fast_7b_on_one_a100(weights: str, measured_tok_s: float) -> None:
    """Constants from the same engine's other two models (8B in bf16, 7B in int4)."""
    own = setting("llama-2-7b", "1x-a100", context=200)
    own = replace(own, shape=own.shape.with_weights(FORMATS[weights]))
    found = fit(read_measured(GPT_FAST).points(own))
    constants = found.constants(own.speed.constants)
    fitted = own.with_speed(replace(own.speed, constants=constants))
    assert fitted.plain_tok_s() == pytest.approx(measured_tok_s, rel=0.15)


def test_gpt_fast_7b_bf16_without_calibration() -> None:
    own = setting("llama-2-7b", "1x-a100", context=200)
    assert own.plain_tok_s() == pytest.approx(104.9, rel=0.15)


@pytest.mark.parametrize(("engine", "measured_tok_s"), [("SGLang", 158.3), ("vLLM", 133.0)])
def test_llama_8b_plain_on_one_h100(engine: str, measured_tok_s: float) -> None:
    """sglang#4247 and vllm#16937: bf16, batch 1."""
    own = setting("llama-3.1-8b", "1x-h100")
    assert own.plain_tok_s() == pytest.approx(measured_tok_s, rel=0.15), engine


def test_each_step_of_our_own_on_an_h200_follows_from_the_others() -> None:
    """benchmarks/results/gpu_ops.json; the 8B and SmolLM2 shapes at batch 1, 8 and 32."""
    own = setting("llama-3.1-8b", "1x-h200", context=512)
    residuals = fit(read_measured(OWN_STEPS).points(own)).residuals
    assert len(residuals) == 6
    for each in residuals:
        assert each.left_out_s == pytest.approx(each.point.measured_s, rel=0.10), each.point.name


def test_the_example_repeats_the_result_file() -> None:
    steps = json.loads((EXAMPLES.parents[1] / "benchmarks/results/gpu_ops.json").read_text())
    measured = {row["name"]: row["graph ms"] for row in steps["results"]["step"]}
    for point in json.loads(OWN_STEPS.read_text())["points"]:
        name = {"llama-3.1-8b": "8b", "smollm2": "smollm2"}[point["model"]]
        batch = point.get("batch", 1)
        assert point["step_ms"] == pytest.approx(measured[f"{name} batch {batch}"], abs=1e-3)
