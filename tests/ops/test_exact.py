"""The exact functions are accurate, and finite at their ends."""

import numpy as np
import torch

from alula.ops import exact


def words(count):
    """Random words of every length."""
    made = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(0))
    made[: count // 2] >>= torch.arange(count // 2) % 32
    made[:6] = torch.tensor([0, 1, -1, -2, 2**31 - 1, -(2**31)])
    return made.int()


def test_gumbel_values_are_within_five_halves_of_an_ulp_of_float64_arithmetic():
    """An ulp is no smaller here than that of 1: near 0 the value is a difference of logarithms."""
    bits = words(400_000)
    found = exact.gumbel(bits).double().numpy()
    u = exact.uniform(bits).double().numpy()
    expected = -np.log(-np.log1p(-u))
    ulp = np.spacing(np.maximum(np.abs(expected), 1.0).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - expected) <= 2.5 * ulp).all()


def test_gumbel_values_fall_as_the_words_grow():
    rising = torch.arange(2**32 - 2**20, 2**32, 977).to(torch.int32)
    for part in (rising, torch.arange(2**20).int(), torch.arange(-(2**31), 2**31, 65_537).int()):
        order = (part.long() & 0xFFFFFFFF).argsort()
        assert (exact.gumbel(part[order]).diff() <= 2.5e-7).all()


def test_masses_are_exponentials_rounded_down():
    scaled = torch.linspace(-40, 0, 100_001)
    expected = scaled.double().exp() * 2.0**exact.MASS_BITS
    found = exact.mass(scaled).double()
    assert ((found - expected).abs() <= 1 + 3e-7 * (1 - scaled) * expected).all()


def test_masses_at_their_ends():
    powers = torch.tensor([0.0, -0.0, -31.0, -1e30, -torch.inf])
    one = 2**exact.MASS_BITS
    assert exact.mass(powers).tolist() == [one, one, 0, 0, 0]
    halves = -torch.arange(4).float() * torch.tensor(2.0).log()
    assert exact.mass(halves).tolist() == [one, one // 2, one // 4, one // 8]


def test_a_whole_vocabulary_of_likeliest_tokens_still_fits():
    total = exact.LARGEST_VOCABULARY << exact.MASS_BITS
    assert total < 2**63 - 1
