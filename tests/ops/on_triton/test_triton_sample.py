"""The sampling kernels choose the reference's token at every row, in any chunks and company."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from alula.ops import exact as reference
from alula.ops.sample import EVERYTHING, Wants
from alula.ops.triton import exact
from alula.ops.triton.sample import sample_in
from alula.sampling import noise, sampler
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState
from sampling_rows import HARD, MIXED, case, hard_case, mixed_state

# The interpreter computes with numpy, which remarks on infinities and NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@triton.jit
def gumbel_kernel(bits, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, exact.gumbel(tl.load(bits + at).to(tl.uint32, bitcast=True)))


@triton.jit
def noise_kernel(key, position, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, exact.noise(tl.load(key), tl.load(position), at))


@triton.jit
def mass_kernel(scaled, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, exact.mass(tl.load(scaled + at)))


def words(count: int) -> torch.Tensor:
    """All kinds of 32-bit words: the extremes, the small ones, random ones."""
    made = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(1))
    made[:8] = torch.tensor([0, 1, -1, -2, 2**31 - 1, -(2**31), 2**24, 2**30])
    made[8:1000] >>= torch.arange(992) % 32
    return made.int()


def test_gumbel_noise_has_the_references_bits(device: torch.device) -> None:
    bits = words(4096)
    found = torch.empty(4096, device=device)
    gumbel_kernel[(1,)](bits.to(device), found, count=4096, enable_fp_fusion=False)
    assert torch.equal(found.cpu(), reference.gumbel(bits))


@pytest.mark.parametrize("key", [0, -1, 0x123456789ABCDEF, -(2**63)])
def test_noise_of_keys_and_positions_has_the_references_bits(
    key: int, device: torch.device
) -> None:
    keys, positions = torch.tensor([key]), torch.tensor([2**31 + 77])
    found = torch.empty(2048, device=device)
    noise_kernel[(1,)](
        keys.to(device), positions.to(device), found, count=2048, enable_fp_fusion=False
    )
    expected = noise.exact_gumbel(noise.row_words(keys, positions), torch.arange(2048))
    assert torch.equal(found.cpu(), expected[0])


def test_masses_are_the_references(device: torch.device) -> None:
    scaled = -70 * torch.rand(4096, generator=torch.Generator().manual_seed(2)) ** 2
    scaled[:5] = torch.tensor([0.0, -0.0, -torch.inf, -1e-42, -3e38])
    found = torch.empty(4096, dtype=torch.int64, device=device)
    mass_kernel[(1,)](scaled.to(device), found, count=4096, enable_fp_fusion=False)
    assert torch.equal(found.cpu(), reference.mass(scaled))


def chosen(
    device: torch.device,
    rows: tuple[torch.Tensor, ...],
    state: SamplingState,
    chunk: int = 256,
    wants: Wants = EVERYTHING,
) -> list[int]:
    there = [tensor.to(device) for tensor in rows]
    found: list[int] = sample_in(chunk, *there, state.settings(), wants).tolist()
    return found


@pytest.mark.parametrize("step", [None, 0.5])
def test_the_tokens_are_the_references(step: float | None, device: torch.device) -> None:
    rows = case(len(MIXED), 700, step=step)
    expected = sampler.sample(*rows, mixed_state(700)).tolist()
    assert chosen(device, rows, mixed_state(700, device)) == expected


def test_ties_borders_and_rows_without_choice_are_the_references(device: torch.device) -> None:
    state, rows = hard_case(150)
    expected = sampler.sample(*rows, state).tolist()
    assert sampler.NO_CHOICE in expected
    assert chosen(device, rows, hard_case(150, device)[0], chunk=128) == expected


def test_chunks_and_company_do_not_matter(device: torch.device) -> None:
    rows, state = case(9, 300, seed=3), mixed_state(300, device)
    expected = chosen(device, rows, state, chunk=128)
    assert chosen(device, rows, state, chunk=512) == expected
    backwards = tuple(tensor[4:9].flip(0) for tensor in rows)
    assert chosen(device, backwards, state, chunk=128) == expected[4:9][::-1]


def test_a_launch_need_do_no_more_than_its_rows_ask_for(device: torch.device) -> None:
    state, rows = hard_case(40, device)
    rows = tuple(tensor[::3].contiguous() for tensor in rows)
    expected = chosen(device, rows, state, chunk=128)
    parts = {Wants(False, 0, False): [0], Wants(True, 0, False): [1], Wants(True, 1, False): [2, 3]}
    for wants, lines in parts.items():
        assert state.wants(lines) == wants
        of = torch.isin(rows[1], torch.tensor(lines))
        part = tuple(tensor[of] for tensor in rows)
        wanted = [token for token, is_of in zip(expected, of.tolist(), strict=True) if is_of]
        assert chosen(device, part, state, chunk=128, wants=wants) == wanted
    assert state.wants(range(len(HARD))).filters == 2


def test_equal_noisy_scores_go_to_the_lowest_id(device: torch.device) -> None:
    """At this position the two largest noises of 32 tokens are the same number."""
    position = torch.tensor([2761970])
    values = noise.exact_gumbel(noise.row_words(torch.tensor([7]), position), torch.arange(32))[0]
    tied = (values == values.max()).nonzero()[:, 0].tolist()
    assert len(tied) == 2
    state = SamplingState(1, 32, device)
    state.admit(0, SamplingParams(), 7, [])
    zero = torch.zeros(1, dtype=torch.int64)
    rows = (torch.zeros(1, 32), zero, position, zero[:, None] - 1)
    assert chosen(device, rows, state, chunk=128) == [min(tied)]


def test_a_head_may_be_wider_than_the_vocabulary(device: torch.device) -> None:
    logits, *rest = case(4, 200, seed=5)
    wide = torch.cat((logits, torch.full((4, 56), 99.0)), dim=1).to(device)
    there = [tensor.to(device) for tensor in rest]
    settings = mixed_state(200, device).settings()
    found = sample_in(128, wide[:, :200], *there, settings, EVERYTHING)
    expected = sampler.sample(logits, *rest, mixed_state(200))
    assert found.tolist() == expected.tolist()
