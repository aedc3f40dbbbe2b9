"""The choice at a row: right, the same on every path, and its own affair."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.errors import ModelError
from alula.sampling import noise, sampler
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState
from sampling_rows import MIXED, case, mixed_state


@pytest.mark.parametrize("vocabulary", [50, 5003])
@pytest.mark.parametrize("step", [None, 0.5])
def test_a_row_is_the_same_in_any_company(vocabulary, step):
    state = mixed_state(vocabulary)
    whole = case(33, vocabulary, step=step)
    expected = sampler.sample(*whole, state)
    for count in range(1, 34) if vocabulary < 100 else (1, 2, 3, 7, 16, 32):
        part = [tensor[:count].clone() for tensor in whole]
        assert torch.equal(sampler.sample(*part, state), expected[:count])
    shuffled = torch.randperm(33, generator=torch.Generator().manual_seed(9))
    moved = sampler.sample(*(tensor[shuffled] for tensor in whole), state)
    assert torch.equal(moved, expected[shuffled])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 17, 300, 4097]),
    st.sampled_from([None, 0.1, 1.0, 10.0]),
)
def test_row_by_row_and_all_at_once_choose_alike(seed, vocabulary, step):
    state = mixed_state(vocabulary) if vocabulary > 5 else mixed_state(6)
    logits, lines, positions, _ = case(len(MIXED), state.vocabulary, seed, step)
    at_once = sampler.choose_at_once(logits, lines, positions, state)
    by_row = sampler.choose_row_by_row(logits, lines, positions, state)
    assert torch.equal(at_once, by_row)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 5.0),
    st.floats(1e-6, 1.0),
    st.integers(0, 200),
    st.floats(0.0, 1.0),
    st.sampled_from([0.01, 1.0, 8.0]),
)
def test_both_ways_agree_for_any_filters(temperature, top_p, top_k, min_p, spread):
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    state = SamplingState(1, 500)
    state.admit(0, params, noise.request_key(1, 2), [])
    make = torch.Generator().manual_seed(int(temperature * 1e6))
    logits = torch.randn(8, 500, generator=make) * spread
    lines, positions = torch.zeros(8, dtype=torch.int64), torch.arange(8)
    at_once = sampler.choose_at_once(logits, lines, positions, state)
    assert torch.equal(at_once, sampler.choose_row_by_row(logits, lines, positions, state))


def test_a_mass_that_rounding_leaves_short_of_top_p_ranks_more_tokens():
    """1 - top_p is one bit of fp32 here, so the negligible tokens are too few to be left out."""
    state = SamplingState(1, 5000)
    state.admit(0, SamplingParams(top_p=1 - 2**-24), 3, [])
    logits = torch.linspace(0, -30, 5000).repeat(40, 1)
    lines, positions = torch.zeros(40, dtype=torch.int64), torch.arange(40)
    at_once = sampler.choose_at_once(logits, lines, positions, state)
    assert torch.equal(sampler.sample(logits, lines, positions, torch.empty(40, 0), state), at_once)


def plain(state_params, logits, vocabulary):
    state = SamplingState(1, vocabulary)
    state.admit(0, state_params, noise.request_key(3, 0), [])
    rows = logits.shape[0]
    lines, path = torch.zeros(rows, dtype=torch.int64), torch.full((rows, 1), -1)
    return sampler.sample(logits, lines, torch.arange(rows), path, state)


@pytest.mark.parametrize("vocabulary", [7, 5000])
def test_the_choice_is_the_argmax_of_scaled_logits_and_noise(vocabulary):
    logits = torch.randn(20, vocabulary, generator=torch.Generator().manual_seed(4))
    found = plain(SamplingParams(temperature=0.7), logits, vocabulary)
    keys = torch.full((20,), noise.request_key(3, 0))
    g = noise.gumbel(keys, torch.arange(20), torch.arange(vocabulary))
    assert torch.equal(found, (logits.double().log_softmax(-1) / 0.7 + g).argmax(-1))


@pytest.mark.parametrize("vocabulary", [40, 5000])
def test_greedy_ties_go_to_the_lowest_id(vocabulary):
    logits = torch.zeros(3, vocabulary)
    logits[1, [5, 9, 30]] = 1.0
    logits[2, vocabulary - 1] = 1.0
    found = plain(SamplingParams(temperature=0.0), logits, vocabulary)
    assert found.tolist() == [0, 5, vocabulary - 1]


@pytest.mark.parametrize("params", MIXED[1:7])
@pytest.mark.parametrize("vocabulary", [40, 5000])
def test_equal_noisy_scores_go_to_the_lowest_id(params, vocabulary, monkeypatch):
    monkeypatch.setattr(noise, "_bits", lambda _, ids: ids.int().expand(1, -1) * 0)
    logits = torch.zeros(1, vocabulary)
    logits[0, [7, 9, 30]] = 50.0
    assert plain(params, logits, vocabulary).tolist() == [7]


@pytest.mark.parametrize("params", MIXED[:7])
@pytest.mark.parametrize("vocabulary", [40, 5000])
@pytest.mark.parametrize("at", [0, 39])
def test_rows_that_allow_no_choice_say_so_and_spare_the_others(params, vocabulary, at):
    logits = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(6))
    good = plain(params, logits, vocabulary)
    logits[0, at] = math.nan
    logits[1, at] = math.inf
    logits[2] = -math.inf
    found = plain(params, logits, vocabulary)
    assert found.tolist() == [sampler.NO_CHOICE] * 3 + good[3:].tolist()
    with pytest.raises(ModelError, match="logits"):
        sampler.check(found.tolist())
    sampler.check(good.tolist())


@pytest.mark.parametrize("params", MIXED[:7])
@pytest.mark.parametrize("vocabulary", [40, 5000])
def test_a_token_with_logit_minus_infinity_is_never_chosen(params, vocabulary):
    logits = torch.full((64, vocabulary), -math.inf)
    logits[:, [11, 37]] = 0.0
    assert set(plain(params, logits, vocabulary).tolist()) <= {11, 37}


@pytest.mark.parametrize("vocabulary", [10, 5000])
def test_each_row_is_penalised_for_its_own_path(vocabulary):
    state = SamplingState(2, vocabulary)
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    state.admit(0, params, 0, prompt_ids=[2], output_ids=[3])
    state.admit(1, SamplingParams(temperature=0.0), 0, [2])
    logits = torch.zeros(1, vocabulary)
    logits[0, 1:5] = torch.tensor([3.0, 3.1, 4.0, 3.2])
    paths = torch.tensor([[-1, -1], [4, -1], [4, 2], [-1, -1]])
    lines = torch.tensor([0, 0, 0, 1])
    found = sampler.sample(logits.repeat(4, 1), lines, torch.arange(4), paths, state)
    # Token 3 is down to 3.0 from the start; the path takes 1 from 4, then from 2.
    assert found.tolist() == [4, 2, 1, 3]


@pytest.mark.parametrize("vocabulary", [10, 5000])
def test_a_bias_comes_after_the_penalties(vocabulary):
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, logit_bias={1: 2.0})
    state = SamplingState(1, vocabulary)
    state.admit(0, params, 0, [1])
    logits = torch.full((1, vocabulary), -9.0)
    logits[0, 1], logits[0, 2] = 2.0, 2.5  # 2 / 2 + 2 = 3 > 2.5, but (2 + 2) / 2 < 2.5
    zero = torch.tensor([0])
    assert sampler.sample(logits, zero, zero, torch.tensor([[-1]]), state).tolist() == [1]


def test_the_callers_logits_are_left_alone():
    for vocabulary in (50, 5000):
        logits, *rest = case(len(MIXED), vocabulary)
        before = logits.clone()
        sampler.sample(logits, *rest, mixed_state(vocabulary))
        assert torch.equal(logits, before)


def test_all_at_once_decides_no_shape_from_values():
    """What a captured graph needs: it runs where values cannot be looked at."""
    state = SamplingState(2, 20, device="meta")
    logits = torch.empty(3, 20, device="meta")
    lines = torch.empty(3, dtype=torch.int64, device="meta")
    assert sampler.choose_at_once(logits, lines, lines, state).shape == (3,)
