"""On this GPU: the reference's tokens of real vocabularies, in any company, and in a graph."""

from __future__ import annotations

import pytest
import torch

from alula.ops import reference
from alula.ops import triton as forms
from alula.ops.sample import EVERYTHING
from alula.ops.triton.sample import sample_in
from alula.sampling import noise, sampler
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState
from launches import without_reading_back
from sampling_rows import HARD, MIXED, case, hard_case, mixed_state

pytestmark = pytest.mark.gpu
VOCABULARIES = [49152, 128256]


def there(rows: tuple[torch.Tensor, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(device) for tensor in rows)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("step", [None, 0.25])
def test_the_tokens_are_those_of_the_cpu(
    vocabulary: int, step: float | None, device: torch.device
) -> None:
    rows = case(4 * len(MIXED), vocabulary, step=step)
    expected = sampler.sample(*rows, mixed_state(vocabulary))
    found = sampler.sample(*there(rows, device), mixed_state(vocabulary, device))
    assert torch.equal(found.cpu(), expected)


def test_ties_borders_and_rows_without_choice_are_those_of_the_cpu(device: torch.device) -> None:
    state, rows = hard_case(5000)
    expected = sampler.sample(*rows, state)
    assert sampler.NO_CHOICE in expected.tolist()
    found = sampler.sample(*there(rows, device), hard_case(5000, device)[0])
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("params", [*MIXED[1:7], HARD[5]])
def test_thousands_of_rows_are_those_of_the_reference(
    params: SamplingParams, device: torch.device
) -> None:
    vocabulary, rows = 49152, 2048
    state = SamplingState(1, vocabulary, device)
    state.admit(0, params, noise.request_key(4, 0), [])
    generator = torch.Generator(device).manual_seed(0)
    logits = 3 * torch.randn(rows, vocabulary, device=device, generator=generator)
    lines = torch.zeros(rows, dtype=torch.int64, device=device)
    positions = torch.arange(rows, device=device)
    found = sampler.sample(logits, lines, positions, lines[:, None] - 1, state, state.wants([0]))
    parts = [
        sampler.choose_at_once(logits[at], lines[at], positions[at], state)
        for at in torch.arange(rows, device=device).split(128)
    ]
    assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_row_is_the_same_in_any_chunks_and_company(vocabulary: int, device: torch.device) -> None:
    rows, state = case(33, vocabulary, seed=2), mixed_state(vocabulary, device)
    rows = there(rows, device)
    whole = sampler.sample(*rows, state)
    for chunk in (256, 512, 2048):
        assert torch.equal(sample_in(chunk, *rows, state.settings(), EVERYTHING), whole), chunk
    for row in range(33):
        alone = [tensor[row : row + 1] for tensor in rows]
        assert torch.equal(sampler.sample(*alone, state), whole[row : row + 1]), row


def test_it_reads_nothing_back_and_replays_with_other_lines(device: torch.device) -> None:
    vocabulary, count = 49152, len(MIXED)
    state = mixed_state(vocabulary, device)
    rows = there(case(count, vocabulary, seed=7), device)
    sampler.sample(*rows, state)
    with without_reading_back():
        sampler.sample(*rows, state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sampler.sample(*rows, state)
    for seed in (7, 8, 9):
        others = case(count, vocabulary, seed=seed)
        for tensor, other in zip(rows, others, strict=True):
            tensor.copy_(other)
        rows[1].copy_(rows[1].roll(seed))
        state.admit(seed, SamplingParams(temperature=0.5 + seed, top_k=seed), seed, [seed])
        captured.fill_(-7)
        graph.replay()
        assert torch.equal(captured, sampler.sample(*rows, state))


def test_exact_functions_have_the_bits_of_the_cpu(device: torch.device) -> None:
    keys = torch.arange(16) * 7919**4 - 2**62
    words, tokens = noise.row_words(keys, keys & 0xFFFFFFFF), torch.arange(128256)
    expected = noise.exact_gumbel(words, tokens)
    assert torch.equal(noise.exact_gumbel(words.to(device), tokens.to(device)).cpu(), expected)


def test_the_commit_moves_all_layers_and_replays(device: torch.device) -> None:
    """32 sequences of the 8B shape, trees of 32 nodes, depth 4."""
    sequences, pages = 32, 6
    table = torch.randperm(sequences * pages, device=device).view(sequences, pages)
    store = torch.randn(8, 2, sequences * pages, 8, 32, 128, device=device).bfloat16()
    last = torch.randint(0, 100, (sequences,), device=device)
    path = torch.zeros(sequences, 5, dtype=torch.int64, device=device)
    counts = torch.ones(sequences, dtype=torch.int64, device=device)
    untouched = store.clone()
    forms.commit(store, table, last, path, counts)
    assert torch.equal(store, untouched)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forms.commit(store, table, last, path, counts)
    for _ in range(5):
        steps = torch.rand(sequences, 32, device=device).argsort(dim=1)[:, :4] + 1
        path[:, 1:] = steps.sort(dim=1).values
        counts.copy_(torch.randint(0, 6, (sequences,), device=device))
        expected = store.clone()
        reference.commit(expected, table, last, path, counts)
        graph.replay()
        assert torch.equal(store, expected)


@pytest.mark.parametrize("nodes", [1, 7, 32, 63])
def test_the_walk_is_the_references(nodes: int, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(nodes)
    shape = (500, nodes)
    tokens = torch.randint(-1, 2, shape, device=device, generator=generator)
    uniform = torch.rand(shape, device=device, generator=generator)
    parents = (uniform * torch.arange(1, nodes + 1, device=device)).long()
    choice = torch.randint(0, 2, (500, nodes + 1), device=device, generator=generator)
    for mine, expected in zip(
        forms.walk(tokens, parents, choice),
        reference.walk(tokens, parents, choice),
        strict=True,
    ):
        assert torch.equal(mine, expected)
