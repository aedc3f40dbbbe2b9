"""The noise: exact integers, uniform and uncorrelated bits, accurate Gumbel values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from alula.sampling import noise

MASK = 0xFFFFFFFF


def plain_mix(x, shifts, factors):
    """A finaliser on a Python integer, as a reader of its definition would write it."""
    for shift, factor in zip(shifts, (*factors, 1), strict=True):
        x ^= x >> shift
        x = x * factor & MASK
    return x


def plain_inner(x):
    return plain_mix(x & MASK, (16, 15, 16), (0x7FEB352D, 0x846CA68B))


def plain_outer(x):
    return plain_mix(x & MASK, (16, 13, 16), (0x85EBCA6B, 0xC2B2AE35))


def plain_bits(key, position, token):
    def word(start):
        low = plain_inner(start + (key & MASK))
        return plain_inner(plain_inner(low + (key >> 32 & MASK)) + position)

    return plain_outer(plain_inner(token + word(0x9E3779B9)) + word(0x6A09E667))


def bits(keys, positions, tokens):
    return noise.hash_bits(torch.tensor(keys), torch.tensor(positions), torch.tensor(tokens))


keys_64 = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=200, deadline=None)
@given(keys_64, st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_the_bits_are_those_of_plain_integer_arithmetic(key, position, tokens):
    expected = [plain_bits(key % 2**64, position, token) for token in tokens]
    assert bits([key], [position], tokens).tolist() == [expected]


def test_the_bits_never_change_between_versions():
    found = bits([0, 1, -1, 0x123456789ABCDEF], [0, 1, 77, 2**31], [0, 1, 49_151])
    assert found.tolist() == GOLDEN
    assert found.dtype == torch.int64


GOLDEN = [
    [2885391051, 3406626008, 2260426063],
    [237853314, 2804918707, 1041744984],
    [3565730365, 844907395, 3725424935],
    [295095454, 3452995634, 1581825160],
]


def test_a_token_has_the_same_bits_and_value_in_any_company():
    keys, positions = torch.arange(5) * 7919, torch.arange(5)
    every = torch.arange(1037)
    whole, values = noise.hash_bits(keys, positions, every), noise.gumbel(keys, positions, every)
    for ids in (torch.tensor([1036]), torch.tensor([3, 900, 5]), every[::3]):
        assert torch.equal(noise.hash_bits(keys, positions, ids), whole[:, ids])
        assert torch.equal(noise.gumbel(keys, positions, ids), values[:, ids])
    own = torch.randint(0, 1037, (5, 11), generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise.gumbel(keys, positions, own), values.gather(1, own))
    for row in range(5):
        one = slice(row, row + 1)
        assert torch.equal(noise.gumbel(keys[one], positions[one], every), values[one])


def test_gumbel_values_are_within_two_ulp_of_float64_arithmetic():
    """An ulp is no smaller here than that of 1: near 0 the value is a difference of logarithms."""
    keys = torch.arange(64) * 104_729
    raw = noise.hash_bits(keys, keys, torch.arange(4096))
    found = noise.gumbel(keys, keys, torch.arange(4096)).double().numpy()
    u = (raw.numpy().astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    u = np.minimum(u, np.float32(1 - 2**-24)).astype(np.float64)
    exact = -np.log(-np.log1p(-u))
    ulp = np.spacing(np.maximum(np.abs(exact), 1.0).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) <= 2 * ulp).all()


def test_the_noise_that_is_made_in_less_time_is_near_the_exact_one():
    keys = torch.arange(64) * 104_729
    words = noise.row_words(keys, keys)
    near, decisive = (form(words, torch.arange(4096)) for form in NOISES)
    assert not torch.equal(near, decisive)
    assert ((near - decisive).abs() < noise.NEAR).all()


NOISES = (noise.near_gumbel, noise.exact_gumbel)


def test_the_extreme_bits_give_finite_values(monkeypatch):
    extremes = torch.tensor([[0, 1, -1, -2, 2**31 - 1, -(2**31)]], dtype=torch.int32)
    monkeypatch.setattr(noise, "_bits", lambda *_: extremes)
    for form in NOISES:
        found = form(torch.zeros(1, 2).int(), torch.arange(6))[0]
        assert found.isfinite().all()
        assert found[0] == found.max() == pytest.approx(math.log(2.0**33), rel=1e-6)
        assert found[2] == found.min() == pytest.approx(-math.log(24 * math.log(2)), rel=1e-6)


def test_gumbel_values_follow_their_law():
    keys = torch.arange(40)
    found = noise.gumbel(keys, keys * 0 + 5, torch.arange(5000)).flatten().double().numpy()
    assert stats.kstest(found, "gumbel_r").pvalue > 1e-4


KINDS = {
    "positions": lambda i: (torch.full_like(i, 3), i, torch.zeros_like(i)),
    "tokens": lambda i: (torch.full_like(i, 3), torch.full_like(i, 9), i),
    "keys": lambda i: (i, torch.full_like(i, 9), torch.zeros_like(i)),
    "high words of keys": lambda i: (i << 32, torch.full_like(i, 9), torch.zeros_like(i)),
    "keys and positions together": lambda i: (i, i, torch.zeros_like(i)),
    "keys against positions": lambda i: (i, 2**20 - i, torch.zeros_like(i)),
    "positions against tokens": lambda i: (torch.full_like(i, 3), i, 2**20 - i),
}


def bits_along(kind, count):
    keys, positions, tokens = KINDS[kind](torch.arange(count))
    return noise.hash_bits(keys, positions, tokens[:, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_bits_along_a_line_of_neighbours_are_uniform(kind):
    found = bits_along(kind, 2**17)
    for shift in (0, 8, 16, 24):
        counts = torch.bincount(found >> shift & 255, minlength=256)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_independent(kind):
    """The joint law of the top nibbles of two neighbours is uniform on 256 cells."""
    found = bits_along(kind, 2**17) >> 28
    for lag in (1, 2, 3, 256):
        counts = torch.bincount(found[:-lag] * 16 + found[lag:], minlength=256)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-5


def flipped(part, bit, count):
    """Bits of `count` places, and of the same places with one input bit flipped."""
    make = torch.Generator().manual_seed(bit)
    keys = torch.randint(-(2**63), 2**63 - 1, (count,), generator=make)
    positions, tokens = torch.arange(count) % 997, torch.arange(count) % 49_152
    flip = torch.tensor(-(2**63) if bit == 63 else 1 << bit)
    changed = {
        "key": (keys ^ flip, positions, tokens),
        "position": (keys, positions ^ flip, tokens),
    }
    changed["token"] = (keys, positions, tokens ^ flip)
    k, p, t = changed[part]
    return (
        noise.hash_bits(keys, positions, tokens[:, None])[:, 0],
        noise.hash_bits(k, p, t[:, None])[:, 0],
    )


@pytest.mark.parametrize(
    ("part", "bit"),
    [("key", b) for b in range(0, 64, 3)]
    + [("key", 63)]
    + [("position", b) for b in range(0, 20, 3)]
    + [("token", b) for b in range(0, 18, 3)],
)
def test_one_flipped_input_bit_flips_each_output_bit_half_the_time(part, bit):
    count = 20_000
    before, after = flipped(part, bit, count)
    changes = ((before ^ after)[:, None] >> torch.arange(32) & 1).sum(0).double()
    sigma = math.sqrt(count) / 2
    assert ((changes - count / 2).abs() < 5.5 * sigma).all()
    joint = torch.bincount((before >> 28) * 16 + (after >> 28), minlength=256)
    assert stats.chisquare(joint.numpy()).pvalue > 1e-6


def test_whole_rows_of_keys_that_differ_in_one_bit_are_uncorrelated():
    every, position = torch.arange(49_152), torch.tensor([17])
    base = 0x0123_4567_89AB_CDEF
    row = noise.gumbel(torch.tensor([base]), position, every)[0].double()
    for bit in range(0, 63, 4):
        other = noise.gumbel(torch.tensor([base ^ (1 << bit)]), position, every)[0].double()
        correlation = float(torch.corrcoef(torch.stack([row, other]))[0, 1])
        assert abs(correlation) < 6 / math.sqrt(len(every))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**31), unique=True, min_size=2))
def test_samples_of_one_request_have_distinct_keys(seed, samples):
    found = [noise.request_key(seed, sample) for sample in samples]
    assert len(set(found)) == len(samples)
    assert all(-(2**63) <= key < 2**63 for key in found)


def test_keys_of_neighbouring_seeds_and_samples_are_distinct_and_fixed():
    found = {noise.request_key(seed, sample) for seed in range(300) for sample in range(300)}
    assert len(found) == 90_000
    assert noise.request_key(0, 0) == KEY_OF_ZERO
    assert noise.request_key(2**64 - 1, 1) == KEY_OF_LAST


KEY_OF_ZERO = 5197578548964807871
KEY_OF_LAST = 1820451397923222333


def test_fresh_seeds_differ_and_are_what_json_keeps_exactly():
    seeds = {noise.fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert max(seeds) > 2**49
