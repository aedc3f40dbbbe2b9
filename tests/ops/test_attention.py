"""A row's attention is right, and depends on its own keys alone, to the bit."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.ops.attention import Heads
from sequences_in_pages import Part, Pool, Vectors, random_vectors, reference

HEADS = st.builds(
    lambda kv, group: Heads(kv * group, kv), st.sampled_from([1, 2, 3, 8]), st.integers(1, 7)
)
DIMS = st.sampled_from([8, 16, 24, 64, 80, 128])
PAGE_SIZES = st.sampled_from([16, 17, 32, 48])
SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=40, deadline=None)


def scattered(count: int, seed: int, of: int = 24) -> list[int]:
    return random.Random(seed).sample(range(1, of), count)


def random_parents(nodes: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(node) for node in range(1, nodes + 1)]


def whole(
    vectors: Vectors, heads: Heads, page_size: int, *, first: int = 0, window: int | None = None
) -> torch.Tensor:
    """All positions from `first` in one launch over consecutive pages."""
    d, end = vectors.q.shape[-1], len(vectors.q)
    table = list(range(-(-end // page_size)))
    part = Part(vectors.at(slice(first, None)), table, first)
    return Pool(heads, d, page_size).launch([part], first=first, window=window)[0]


def in_pieces(
    vectors: Vectors,
    heads: Heads,
    page_size: int,
    seed: int,
    *,
    first: int = 0,
    window: int | None = None,
) -> torch.Tensor:
    """The same positions cut at random into launches over scattered pages."""
    pool = Pool(heads, vectors.q.shape[-1], page_size)
    dice, end = random.Random(seed), len(vectors.q)
    table = scattered(-(-end // page_size), seed)
    found, start = [], first
    while start < end:
        stop = min(end, start + dice.choice([1, 1, 2, 3, 5, 8, 17, 40]))
        part = Part(vectors.at(slice(start, stop)), table, start)
        found += pool.launch([part], first=first, window=window)
        start = stop
    return torch.cat(found)


@quick
@given(HEADS, DIMS, PAGE_SIZES, st.integers(2, 90), st.booleans(), SEEDS)
def test_a_chain_equals_plain_attention(heads, d, page_size, length, windowed, seed):
    first, window = seed % 2, 1 + seed % 40 if windowed else None
    vectors = random_vectors(length, heads, d, seed)
    found = whole(vectors, heads, page_size, first=first, window=window)
    for position in range(first, length):
        start = max(first, position - window + 1) if window else first
        seen = slice(start, position + 1)
        wanted = reference(vectors.q[position], vectors.k[seen], vectors.v[seen])
        assert torch.allclose(found[position - first].double(), wanted, rtol=1e-4, atol=1e-5)


@quick
@given(HEADS, DIMS, PAGE_SIZES, st.integers(2, 90), st.booleans(), SEEDS)
def test_neither_chunk_borders_nor_pages_change_a_bit(heads, d, page_size, length, windowed, seed):
    options = {"first": seed % 2, "window": 1 + seed % 40 if windowed else None}
    vectors = random_vectors(length, heads, d, seed)
    pieces = in_pieces(vectors, heads, page_size, seed, **options)
    assert torch.equal(pieces, whole(vectors, heads, page_size, **options))


@quick
@given(HEADS, DIMS, PAGE_SIZES, st.integers(1, 70), st.integers(1, 12), st.booleans(), SEEDS)
def test_a_node_equals_the_chain_of_its_path_to_the_bit(
    heads, d, page_size, root, nodes, windowed, seed
):
    first, window = seed % 2, 2 + seed % 40 if windowed else None
    before = random_vectors(root, heads, d, seed)
    drafted = random_vectors(1 + nodes, heads, d, seed + 1)
    table = scattered(-(-(root + nodes + 1) // page_size), seed)
    pool = Pool(heads, d, page_size)
    pool.fill(before.at(slice(first, None)), table, first)
    tree = Part(drafted, table, root, random_parents(nodes, seed))
    (found,) = pool.launch([tree], first=first, window=window)
    for row in range(1 + nodes):
        path = before.then(drafted.at(tree.way(row)))
        chain = whole(path, heads, page_size, first=first, window=window)
        assert torch.equal(found[row], chain[-1])
        start = max(first, len(path.k) - window) if window else first
        wanted = reference(path.q[-1], path.k[start:], path.v[start:])
        assert torch.allclose(found[row].double(), wanted, rtol=1e-4, atol=1e-5)


@quick
@given(HEADS, DIMS, PAGE_SIZES, st.integers(1, 5), SEEDS)
def test_sequences_beside_it_change_no_bit_of_a_row(heads, d, page_size, others, seed):
    """Trees beside chains, single rows beside chunks, whatever is launched together."""
    dice = random.Random(seed)
    parts, pages = [], iter(scattered(60, seed, of=80))
    together, alone = Pool(heads, d, page_size, 80), []
    for number in range(1 + others):
        start, count = dice.randint(0, 40), dice.choice([1, 2, 5, 9, 30])
        table = [next(pages) for _ in range(-(-(start + count) // page_size))]
        parents = random_parents(count - 1, seed) if number % 2 and count > 1 else None
        before = random_vectors(start, heads, d, seed + number)
        parts.append(Part(random_vectors(count, heads, d, seed + 99 + number), table, start))
        parts[-1].parents = parents
        single = Pool(heads, d, page_size, 80)
        for pool in (together, single):
            pool.fill(before, table)
        alone += single.launch(parts[-1:])
    for found, wanted in zip(together.launch(parts), alone, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_leaves_rows_exact(threads: int) -> None:
    heads = Heads(9, 3)
    vectors = random_vectors(150, heads, 64, seed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(in_pieces(vectors, heads, 32, seed=2), whole(vectors, heads, 32))
    finally:
        torch.set_num_threads(before)


def test_what_lies_in_pages_of_others_and_behind_the_last_key_never_shows() -> None:
    """Every lane of the pools that holds no key of the sequence holds NaN."""
    heads = Heads(6, 2)
    vectors = random_vectors(50, heads, 16, seed=3)
    assert whole(vectors, heads, 32).isfinite().all()
    assert in_pieces(vectors, heads, 32, seed=4).isfinite().all()


def test_a_reused_page_shows_nothing_of_its_last_owner() -> None:
    """Not even at position 0 of a drafter, which is read and never written."""
    heads = Heads(2, 1)
    vectors = random_vectors(20, heads, 16, seed=5)
    pool, fresh = Pool(heads, 16, 32, pages=1), Pool(heads, 16, 32, pages=1)
    owner = random_vectors(32, heads, 16, seed=6)
    pool.fill(Vectors(owner.q, owner.k * torch.nan, owner.v * torch.nan), [0])
    part = Part(vectors.at(slice(1, None)), [0], 1)
    (found,), (wanted,) = pool.launch([part], first=1), fresh.launch([part], first=1)
    assert found.isfinite().all()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_are_taken_in_fp32_and_returned_in_the_dtype_of_the_queries(dtype) -> None:
    heads, d = Heads(4, 2), 32
    wide = random_vectors(40, heads, d, seed=7)
    narrow = Vectors(*(part.to(dtype).float() for part in wide))
    exact = whole(narrow, heads, 32)
    found = whole(Vectors(narrow.q.to(dtype), narrow.k, narrow.v), heads, 32)
    assert found.dtype == dtype
    assert torch.equal(found, exact.to(dtype))


def test_a_row_that_saw_its_sibling_would_be_noticed() -> None:
    """The tree tests can fail: sight of one more key moves a row."""
    heads = Heads(2, 1)
    drafted = random_vectors(3, heads, 16, seed=8)
    pool = Pool(heads, 16, 32)
    siblings = Part(drafted, [3], 0, [0, 0])
    (found,) = pool.launch([siblings])
    assert not torch.equal(found[2], whole(drafted, heads, 32)[2])
