"""On a GPU: rounds are captured, forced, timed and taken apart; a weight is tuned and looked up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alula.bench.kinds import DRAFTER, GAPS, LINEAR
from alula.bench.random_weights import SMOLLM2
from alula.bench.rounds import RoundPlan, measure
from alula.bench.shapes import Matrix, Subject

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
SMALL = Subject("small", replace(SMOLLM2, layers=6, vocab_size=2048), 1024)


def test_captured_rounds_accept_what_they_are_told_to() -> None:
    plan = RoundPlan(
        SMALL,
        ("chain:3", "tree:3x3:9"),
        batch=2,
        simulated=(1.0, 0.5, 0.0),
        rounds=60,
        profile=True,
    )
    measured = measure(plan, torch.device("cuda"), torch.bfloat16)
    plain, *drafted = measured.times
    assert plain.tokens_per_round == 1.0
    for times in drafted:
        assert times.launches["captured"] > 180
        assert times.tokens_per_round == pytest.approx(2.5, abs=0.15)
        assert times.simulation_us is not None and times.simulation_us > -5
    for anatomy in measured.anatomies:
        parts = {part.kind: part for part in anatomy.parts}
        assert parts[LINEAR].launches >= 4 * SMALL.shape.layers + 1
        assert (DRAFTER in parts) == (not anatomy.name.endswith("off"))
        busy = sum(part.us for part in anatomy.parts if part.kind != GAPS)
        assert 0.3 * anatomy.us < busy < 1.5 * anatomy.us


def test_a_tuned_weight_is_looked_up(tmp_path: Path) -> None:
    from alula.bench.kernels import LinearBench, shared_bytes
    from alula.bench.tune import tune, written
    from alula.ops.triton.tiles import choose, read

    device = torch.device("cuda")
    bench = LinearBench(Matrix("small", 1024, 512), torch.bfloat16, device)
    with torch.inference_mode():
        chosen = list(tune(bench, shared_bytes(device), 4.0, (4, 48, 2048)))
    path = tmp_path / "sm_99.json"
    path.write_text(json.dumps(written(path, tmp_path / "none.json", {bench.shape: chosen})))
    known = read(path).measured[bench.shape]
    for each in chosen:
        assert choose(known, each.rows) == each.best.tile
        assert 0 < each.best.us <= min(trial.us for trial in each.trials) * 1.01
        assert each.cublas_us > 0
