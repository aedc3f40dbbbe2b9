"""A linear joined with what surrounds it gives its parts' bits and the reference's values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.ops import layer as reference
from alula.ops.attention import Heads
from alula.ops.layer import Store, Stream
from alula.ops.linear import DenseWeight
from alula.ops.norm import Norm, Normed
from alula.ops.rope import rotary_table
from alula.ops.store import HeadNorms, places
from alula.ops.triton import layer
from alula.ops.triton.linear import lay_out

HIDDEN, INNER = 96, 112
HEADS, HALF = Heads(4, 2), 12
NORM_SCALES = (1.0, 30.0)
ROWS = (1, 5, 16, 37)


@pytest.fixture
def deferring(device: torch.device) -> torch.dtype:
    """A dtype in which norms put their division off."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def tensor(*shape: int, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(device, dtype)


def matrix(
    outputs: int, inner: int, device: torch.device, dtype: torch.dtype, *, bias: bool = False
) -> DenseWeight:
    values = tensor(outputs, inner, device=device, dtype=dtype) * inner**-0.5
    of_bias = tensor(outputs, device=device, dtype=dtype, seed=1) if bias else None
    return DenseWeight(values, of_bias)


def norm(device: torch.device, width: int = HIDDEN) -> Norm:
    return Norm(tensor(width, device=device, dtype=torch.float32, seed=2).abs() + 0.5, 1e-5)


def began(rows: int, device: torch.device, dtype: torch.dtype, changes: int = 2) -> Stream:
    table = tensor(50, HIDDEN, device=device, dtype=dtype, seed=3)
    ids = torch.arange(rows, device=device) * 7 % 50
    return layer.embed(ids, table, dtype, norm(device), changes)


def divided(normed: Normed) -> Tensor:
    wide = normed.values.float()
    if normed.squares is None:
        return wide
    mean = normed.squares.double() / 2**28 / wide.shape[1]
    return wide * (mean + normed.eps).rsqrt().float()[:, None]


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "JOINED_ROWS", 0)


def test_a_stream_begins_with_the_embedding_and_its_norm(
    device: torch.device, dtype: torch.dtype
) -> None:
    table = tensor(50, HIDDEN, device=device, dtype=dtype, seed=3)
    ids = torch.tensor([3, 49, 0], device=device)
    found = layer.embed(ids, table, dtype, norm(device), 3)
    expected = reference.embed(ids, table, dtype, norm(device), 3)
    assert torch.equal(found.x, expected.x)
    torch.testing.assert_close(
        divided(found.normed), expected.normed.values.float(), rtol=1e-2, atol=1e-2
    )
    if found.room is not None:
        assert found.room.shape == (3, 3)
        assert not found.room.any()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [False, True])
def test_add_is_the_sum_its_norm_and_the_bits_of_its_parts(
    rows: int,
    bias: bool,
    device: torch.device,
    deferring: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dense = matrix(HIDDEN, INNER, device, deferring, bias=bias)
    weight = lay_out(dense)
    inner = tensor(rows, INNER, device=device, dtype=deferring, seed=4)
    joined = layer.add(began(rows, device, deferring), inner, weight, norm(device))
    expected = reference.add(began(rows, device, deferring), inner, dense, norm(device))
    tolerance = 1e-5 if deferring == torch.float32 else 2e-2
    torch.testing.assert_close(joined.x, expected.x, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        divided(joined.normed), expected.normed.values.float(), rtol=tolerance, atol=tolerance
    )
    apart(monkeypatch)
    parts = layer.add(began(rows, device, deferring), inner, weight, norm(device))
    assert torch.equal(joined.x, parts.x)
    assert torch.equal(joined.normed.values, parts.normed.values)
    assert joined.normed.squares is not None
    assert parts.normed.squares is not None
    assert torch.equal(joined.normed.squares, parts.normed.squares)


def test_the_sum_of_squares_is_that_of_whole_numbers(
    device: torch.device, deferring: torch.dtype
) -> None:
    stream = began(4, device, deferring)
    weight = lay_out(matrix(HIDDEN, INNER, device, deferring))
    inner = tensor(4, INNER, device=device, dtype=deferring, seed=4)
    for change in range(2):
        stream = layer.add(stream, inner * (1 + change), weight, norm(device))
        units = stream.x.float().square().mul(2.0**28).add(0.5).long().sum(1)
        assert stream.normed.squares is not None
        assert torch.equal(stream.normed.squares, units)


@pytest.mark.parametrize("rows", ROWS)
def test_the_gate_is_swiglu_and_the_bits_of_its_parts(
    rows: int, device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = matrix(2 * INNER, HIDDEN, device, dtype, bias=True)
    weight, normed = lay_out(dense), began(rows, device, dtype).normed
    joined = layer.gate(normed, weight)
    expected = reference.gate(Normed(divided(normed).to(dtype)), dense)
    torch.testing.assert_close(joined, expected, rtol=2e-2, atol=2e-2)
    apart(monkeypatch)
    assert torch.equal(joined, layer.gate(normed, weight))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("norms", [False, True])
def test_heads_are_rotated_and_stored_with_the_bits_of_the_parts(
    rows: int,
    norms: bool,
    device: torch.device,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d, count = 2 * HALF, HEADS.query + 2 * HEADS.kv
    dense = matrix(count * d, HIDDEN, device, dtype, bias=True)
    weight, normed = lay_out(dense), began(rows, device, dtype).normed
    positions = torch.arange(rows, device=device) * 3
    frequencies = 1e4 ** -(torch.arange(HALF, device=device) / HALF)
    rotation = rotary_table(frequencies, positions)
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:rows].to(device)
    at = places(slots, 16)
    by_head = None
    if norms:
        of_head = [norm(device, d).weight for _ in range(2)]
        by_head = HeadNorms(*of_head, 1e-5)

    def run(form: str) -> list[Tensor]:
        pool = torch.zeros(2, 4, HEADS.kv, 16, d, device=device, dtype=dtype)
        store = Store(pool[0], pool[1], at)
        if form == "reference":
            whole = Normed(divided(normed).to(dtype))
            return [reference.project_heads(whole, dense, HEADS, rotation, store, by_head), pool]
        return [layer.project_heads(normed, weight, HEADS, rotation, store, by_head), pool]

    joined = run("joined")
    for found, expected in zip(joined, run("reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    apart(monkeypatch)
    assert all(torch.equal(*pair) for pair in zip(joined, run("apart"), strict=True))


@pytest.mark.parametrize("scale", NORM_SCALES)
def test_a_row_is_the_same_alone(
    scale: float, device: torch.device, deferring: torch.dtype
) -> None:
    weight = lay_out(matrix(HIDDEN, INNER, device, deferring))
    gates = lay_out(matrix(2 * INNER, HIDDEN, device, deferring))
    inner = tensor(37, INNER, device=device, dtype=deferring, seed=4) * scale

    def run(chosen: Tensor) -> Tensor:
        table = tensor(37, HIDDEN, device=device, dtype=deferring, seed=3)
        stream = layer.embed(chosen, table, deferring, norm(device), 1)
        stream = layer.add(stream, inner[chosen], weight, norm(device))
        return layer.gate(stream.normed, gates)

    every = torch.arange(37, device=device)
    whole = run(every)
    for chosen in (every[:1], every[20:21], every[5:9], every[:17]):
        assert torch.equal(run(chosen), whole[chosen])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_not_one_of_many_numbers_is_rounded_otherwise_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 30 million some 260 were, while the compiler chose what to fuse."""
    device, dtype, rows, seeds = torch.device("cuda"), torch.bfloat16, 128, 200
    heads, half, hidden = Heads(9, 3), 32, 576
    weight = lay_out(matrix(15 * 2 * half, hidden, device, dtype))
    gates = lay_out(matrix(2 * hidden, hidden, device, dtype))
    frequencies = 1e4 ** -(torch.arange(half, device=device) / half)
    at = places(torch.arange(rows, device=device), 16)

    def run(seed: int) -> list[Tensor]:
        table = tensor(rows, hidden, device=device, dtype=dtype, seed=seed)
        every = torch.arange(rows, device=device)
        stream = layer.embed(every, table, dtype, norm(device, hidden), 0)
        rotation = rotary_table(frequencies, every + 7 * seed)
        pool = torch.zeros(2, rows // 16, heads.kv, 16, 2 * half, device=device, dtype=dtype)
        store = Store(pool[0], pool[1], at)
        queries = layer.project_heads(stream.normed, weight, heads, rotation, store)
        return [queries, pool, layer.gate(stream.normed, gates)]

    joined = [run(seed) for seed in range(seeds)]
    apart(monkeypatch)
    for seed, expected in enumerate(joined):
        assert all(torch.equal(*pair) for pair in zip(run(seed), expected, strict=True))
