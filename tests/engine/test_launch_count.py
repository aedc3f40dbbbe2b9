"""A captured round is a few kernels around the model, and no operation of torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alula.cache import pool
from alula.cache.pool import KVPool
from alula.engine import launch, runner
from alula.engine.lines import Lines
from alula.engine.rounds import Size
from alula.engine.runner import Runner
from alula.models import placement
from alula.models.decoder import Decoder
from alula.models.load import load
from alula.ops.linear import DenseWeight
from alula.ops.sample import Wants
from alula.sampling import sampler
from alula.sampling.params import SamplingParams
from alula.speculation import walk
from alula.speculation.tree import TreeShape, parse_shape

AROUND = {"prepare_kernel": 1, "adjust_kernel": 1, "advance_kernel": 1}
GREEDY = Wants(noise=False, filters=0, adjustments=False)
DRAWN = Wants(noise=True, filters=0, adjustments=True)
PAGES, PAGE = 8, 32

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="it counts in Triton's interpreter"),
    # Which computes with numpy, which remarks on infinities.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture
def decoder(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """One of Triton's kernels; the tiles of its linears are not tried out."""
    pytest.importorskip("triton")
    from alula.ops import triton as forms
    from alula.ops.triton.linear import TiledWeight
    from alula.ops.triton.tiles import table

    def lay_out(weight: DenseWeight) -> TiledWeight:
        return TiledWeight(weight, table(*weight.shape, weight.dtype, None, 1))

    kernels = SimpleNamespace(**{**vars(forms), "lay_out": lay_out})
    for module in (launch, placement, pool, runner, sampler, walk):
        monkeypatch.setattr(module, "kernels_for", lambda _: kernels)
    return load(str(tiny_model), "cpu", "float32").decoder


def runner_of(decoder: Decoder, shape: TreeShape) -> Runner:
    """Of two lines, one of them with penalties; it does not draft."""
    sizes = decoder.shape
    device = torch.device("cpu")
    lines = Lines(
        count=2,
        max_length=64,
        pages_per_line=4,
        draft_nodes=shape.nodes,
        vocab_size=sizes.vocab_size,
        spare_page=PAGES - 1,
        device=device,
    )
    lines.sampling.admit(0, SamplingParams(presence_penalty=1.0), 7, [3])
    store = KVPool(
        layers=sizes.layers,
        pages=PAGES,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        page_size=PAGE,
        dtype=torch.float32,
        device=device,
    )
    return Runner(decoder, store, lines, shape)


@pytest.mark.parametrize(
    ("words", "wants", "more"),
    [
        ("chain:0", GREEDY, {}),
        ("chain:0", DRAWN, {"draw_kernel": 1}),
        ("chain:3", GREEDY, {}),
        ("tree:2x4:9", GREEDY, {"commit_kernel": 1}),
    ],
)
def test_what_is_launched_around_the_model(
    words: str, wants: Wants, more: dict[str, int], decoder: Decoder, monkeypatch: Any
) -> None:
    from launches import launches

    made = runner_of(decoder, parse_shape(words))
    size = Size(2, made._shape.depth, made._shape.depth, wants)
    at = torch.tensor([0, made.lines.spare])
    made._round(at, size)  # makes what is made once
    model: Counter[str] = Counter()
    with launches(monkeypatch) as found:
        for part in ("forward", "logits"):
            monkeypatch.setattr(decoder, part, apart(getattr(decoder, part), found, model))
        made._round(at, size)
    assert found == AROUND | more
    layers = decoder.shape.layers
    assert model == {
        "embed_kernel": 1,
        "heads_kernel": layers,
        "attention_kernel": layers,
        "add_linear_kernel": 2 * layers,
        "gate_kernel": layers,
        "linear_kernel": 1,
    }


def apart(part: Any, found: Counter[str], model: Counter[str]) -> Any:
    """A part of the model whose launches are counted apart."""

    def counted(*given: Any) -> Any:
        before = Counter(found)
        result = part(*given)
        own = found - before
        model.update(own)
        found.subtract(own)
        for name in own:
            if not found[name]:
                del found[name]
        return result

    return counted
