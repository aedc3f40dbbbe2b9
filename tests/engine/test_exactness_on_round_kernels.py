"""An engine whose sampling, walk and commit are the kernels' emits the reference's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from alula.cache import pool
from alula.models.load import load
from alula.sampling import sampler
from alula.speculation import walk
from exactness import Bench, answers, cases, engine

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own proof"),
    # The interpreter computes with numpy, which remarks on infinities.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def test_the_tokens_are_the_references(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from alula.ops import triton as forms

    model = load(str(tiny_model), "cpu", "float32")
    bench = Bench(model, cases(model.decoder.shape.vocab_size, count=2, tokens=6), tmp_path)
    expected, speculator = bench.plain, bench.speculator("oracle tree:3x2:6")
    launched: list[object] = []
    for module in (pool, sampler, walk):
        monkeypatch.setattr(module, "kernels_for", lambda _: launched.append(1) or forms)
    assert answers(engine(model, speculator), bench.cases, together=True) == expected
    assert launched
