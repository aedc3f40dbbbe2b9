"""An engine that uses the kernels around the model emits the reference's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from alula.cache import pool
from alula.engine import launch, runner
from alula.engine.rounds import Rounds
from alula.models.load import load
from alula.sampling import sampler
from alula.speculation import walk
from exactness import Bench, answers, cases, engine

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own proof"),
    # The interpreter computes with numpy, which remarks on infinities.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("laid_out", "words", "count"),
    [("tight", "oracle tree:3x2:6", 2), ("dense", "oracle tree:3x2:6", 1), ("dense", "off", 1)],
)
def test_the_tokens_are_the_references(
    laid_out: str,
    words: str,
    count: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from alula.ops import triton as forms

    model = load(str(tiny_model), "cpu", "float32")
    bench = Bench(model, cases(model.decoder.shape.vocab_size, count=count, tokens=6), tmp_path)
    expected, speculator = bench.plain, bench.speculator(words)
    launched: list[object] = []
    for module in (launch, pool, runner, sampler, walk):
        monkeypatch.setattr(module, "kernels_for", lambda _: launched.append(1) or forms)
    made = engine(model, speculator)
    if laid_out == "dense":
        made._runner.rounds = Rounds(made._runner.lines, made._runner._round)
    assert answers(made, bench.cases, together=True) == expected
    assert launched
