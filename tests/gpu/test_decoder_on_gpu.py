"""On this GPU: a decoder's rows are exact, read nothing back, and can be captured in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.bench.random_weights import SMOLLM2, random_decoder
from alula.cache.pool import KVPool
from alula.models import placement
from alula.models.decoder import Decoder
from alula.ops import reference
from alula.ops.rows import Rows
from launches import without_reading_back
from paged import chains, to, trees

pytestmark = pytest.mark.gpu
PAGE = 32
PARENTS = [0, 0, 1, 1, 2, 4, 6, 6]


def pool_for(decoder: Decoder, rows: Rows) -> KVPool:
    """A pool in which all that was never written is NaN."""
    shape = decoder.shape
    pool = KVPool(
        layers=shape.layers,
        pages=rows.page_table.numel(),
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=PAGE,
        dtype=decoder.cache_dtype,
        device=decoder.device,
    )
    for layer in range(shape.layers):
        pool.keys(layer).fill_(torch.nan)
        pool.values(layer).fill_(torch.nan)
    return pool


def ids(count: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(SMOLLM2.vocab_size, (count,), generator=generator).to(device)


def prefill(decoder: Decoder, tokens: Tensor, chunk: int) -> Tensor:
    """Logits of all rows of one sequence."""
    end = len(tokens)
    whole = to(chains([(0, end)], page=PAGE), decoder.device)
    pool, parts = pool_for(decoder, whole), []
    for start in range(0, end, chunk):
        rows = to(chains([(start, min(start + chunk, end))], page=PAGE), decoder.device)
        rows = rows._replace(page_table=whole.page_table)
        rows = rows._replace(slots=whole.slots[start : start + chunk])
        parts.append(decoder.forward(tokens[start : start + chunk], rows, pool).last)
    return torch.cat([decoder.logits(part) for part in parts])


def test_any_chunks_make_the_same_logits(smollm2: Decoder) -> None:
    tokens = ids(300, smollm2.device)
    whole = prefill(smollm2, tokens, 300)
    assert not whole.isnan().any()
    for chunk in (256, 130, 64, 17):
        assert torch.equal(prefill(smollm2, tokens, chunk), whole), chunk
    assert torch.equal(prefill(smollm2, tokens[:70], 1), whole[:70])


def test_sequences_side_by_side_are_as_alone(smollm2: Decoder) -> None:
    spans = [(0, n) for n in (1, 5, 40, 64, 65, 130, 20, 33)]
    rows = to(chains(spans, page=PAGE), smollm2.device)
    tokens = ids(len(rows.slots), smollm2.device)
    together = smollm2.logits(smollm2.forward(tokens, rows, pool_for(smollm2, rows)).last)
    start = 0
    for _, count in spans:
        alone = prefill(smollm2, tokens[start : start + count], count)
        assert torch.equal(alone, together[start : start + count]), count
        start += count


def test_a_path_of_a_tree_is_the_chain_of_its_nodes(smollm2: Decoder) -> None:
    root, path = 100, [1, 4, 6, 7]
    device = smollm2.device
    tree = to(trees([root], PARENTS, page=PAGE), device)
    pool = pool_for(smollm2, tree)
    known = ids(root, device)
    before = to(chains([(0, root)], page=PAGE), device)
    table = tree.page_table
    positions = torch.arange(root, device=device)
    slots = table[0, positions // PAGE] * PAGE + positions % PAGE
    smollm2.forward(known, before._replace(page_table=table, slots=slots), pool)
    drafted = ids(len(PARENTS) + 1, device)
    found = smollm2.forward(drafted, tree, pool, taps=(1, 3))
    chain = torch.cat((known, drafted[[0, *path]]))
    assert torch.equal(smollm2.logits(found.last)[[0, *path]], prefill(smollm2, chain, 64)[root:])


def test_taps_change_no_bit(smollm2: Decoder) -> None:
    rows = to(chains([(0, 50)], page=PAGE), smollm2.device)
    tokens = ids(50, smollm2.device)
    plain, tapped = (
        smollm2.forward(tokens, rows, pool_for(smollm2, rows), taps) for taps in ((), (1, 3, 6))
    )
    assert torch.equal(plain.last.values, tapped.last.values)


def test_it_is_near_the_reference(smollm2: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "kernels_for", lambda _: reference)
    other = random_decoder(SMOLLM2, smollm2.device, layers=6)
    tokens = ids(200, smollm2.device)
    found, expected = prefill(smollm2, tokens, 200), prefill(other, tokens, 200)
    assert float((found - expected).norm() / expected.norm()) < 3e-2


@torch.inference_mode()
def test_a_launch_reads_nothing_back_and_replays(smollm2: Decoder) -> None:
    device = smollm2.device
    rows = to(trees([40, 200, 90], PARENTS, page=PAGE), device)
    tokens, pool = ids(len(rows.slots), device), pool_for(smollm2, rows)
    for layer in range(smollm2.shape.layers):
        pool.keys(layer).normal_()
        pool.values(layer).normal_()

    def launch() -> Tensor:
        return smollm2.logits(smollm2.forward(tokens, rows, pool, taps=(1, 3)).last)

    expected = launch()
    with without_reading_back():
        assert launch().shape == expected.shape
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = launch()
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)
    # Topology is data: other parents in the same tensors give other logits, those of an own launch.
    other = to(trees([40, 200, 90], [0] * len(PARENTS), page=PAGE), device)
    assert other.tail is not None
    assert rows.tail is not None
    rows.tail.fill_(-1)
    rows.tail[:, : other.tail.shape[1]] = other.tail
    rows.positions.copy_(other.positions)
    rows.last.copy_(other.last)
    graph.replay()
    assert torch.equal(captured, launch())
    assert not torch.equal(captured, expected)
