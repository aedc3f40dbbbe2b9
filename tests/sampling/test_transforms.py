"""Penalties and filters follow their published rules, down to the borders."""

import math

import pytest
import torch

from alula.sampling.transforms import (
    Filters,
    Penalties,
    kept,
    penalise,
    ranked,
    ranked_above,
    scale,
    total_mass,
)


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)[:, None]


def survivors(logits, *, top_k=0, top_p=1.0, min_p=0.0, temperature=1.0):
    """Ids that the filters leave of one row, likeliest first."""
    row = torch.tensor([logits], dtype=torch.float32)
    size = row.shape[1]
    scaled = scale(row, column(temperature))
    least = math.log(min_p) if min_p else -math.inf
    filters = Filters(column(top_k or size, dtype=torch.int64), column(top_p), column(least))
    candidates = ranked(scaled)
    keep = kept(candidates, total_mass(scaled), filters, size)
    return candidates.ids[keep].tolist()


def logs(*probabilities):
    return [math.log(p) for p in probabilities]


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output():
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0, 3.0]])
    seen = torch.tensor([[True, True, False, False, False]])
    counts = torch.tensor([[0, 0, 1, 2, 0]], dtype=torch.int32)
    penalties = Penalties(column(2.0), column(0.0), column(0.0))
    assert penalise(logits, seen, counts, penalties).tolist() == [[1.0, -4.0, 1.0, -4.0, 3.0]]


def test_presence_and_frequency_count_the_output_alone():
    logits = torch.zeros(1, 4)
    seen = torch.tensor([[True, False, True, False]])
    counts = torch.tensor([[0, 1, 3, 0]], dtype=torch.int32)
    penalties = Penalties(column(1.0), column(0.5), column(0.25))
    assert penalise(logits, seen, counts, penalties).tolist() == [[0.0, -0.75, -1.25, 0.0]]


def test_a_row_without_penalties_keeps_its_logits_to_the_bit():
    logits = torch.randn(3, 1000) * 10
    logits[0, :3] = torch.tensor([-math.inf, math.inf, -0.0])
    ones, zeros = torch.ones(3, 1), torch.zeros(3, 1)
    counts = torch.randint(0, 5, (3, 1000), dtype=torch.int32)
    found = penalise(logits, counts > 2, counts, Penalties(ones, zeros, zeros))
    assert torch.equal(found, logits)


def test_top_p_keeps_a_token_while_the_mass_before_it_is_below_p():
    halves = logs(0.5, 0.25, 0.125, 0.125)
    assert survivors(halves, top_p=0.5) == [0]
    assert survivors(halves, top_p=0.500001) == [0, 1]
    assert survivors(halves, top_p=0.75) == [0, 1]
    assert survivors(halves, top_p=0.76) == [0, 1, 2]
    assert survivors(halves, top_p=1.0) == [0, 1, 2, 3]
    assert survivors(halves, top_p=1e-30) == [0]


def test_equal_tokens_at_the_top_p_border_are_kept_by_lowest_id():
    assert survivors([0.0] * 8, top_p=0.375) == [0, 1, 2]
    assert survivors([0.0] * 8, top_p=0.376) == [0, 1, 2, 3]


def test_top_k_keeps_exactly_k_and_of_equal_tokens_the_lowest_ids():
    assert survivors([1.0, 3.0, 1.0, 1.0, 2.0], top_k=3) == [1, 4, 0]
    assert survivors([1.0, 3.0, 1.0, 1.0, 2.0], top_k=4) == [1, 4, 0, 2]
    assert survivors([0.0] * 6, top_k=2) == [0, 1]


def test_top_p_measures_the_mass_that_top_k_left():
    probabilities = logs(0.4, 0.3, 0.2, 0.1)
    assert survivors(probabilities, top_p=0.5) == [0, 1]
    assert survivors(probabilities, top_k=2, top_p=0.5) == [0]  # 0.4 / 0.7 > 0.5


def test_min_p_compares_with_the_likeliest_token_after_temperature():
    probabilities = logs(0.4, 0.3, 0.2, 0.1)
    assert survivors(probabilities, min_p=0.5000001) == [0, 1]
    assert survivors(probabilities, min_p=0.49) == [0, 1, 2]
    assert survivors(probabilities, min_p=1.0) == [0]
    assert survivors([1.0, 1.0, 0.0], min_p=1.0) == [0, 1]
    assert survivors(probabilities, min_p=0.24, temperature=0.5) == [0, 1, 2]
    assert survivors(probabilities, min_p=0.26, temperature=0.5) == [0, 1]


@pytest.mark.parametrize("floor", [-math.inf, -6.0, -1.0, 0.0])
def test_candidates_above_a_floor_are_the_head_of_the_whole_ranking(floor):
    make = torch.Generator().manual_seed(0)
    scaled = scale((torch.randn(1, 999, generator=make) * 2).round(decimals=1), column(0.7))
    whole, head = ranked(scaled), ranked_above(scaled, floor)
    count = head.ids.shape[1]
    assert count == int((scaled >= floor).sum())
    assert torch.equal(head.ids, whole.ids[:, :count])
    assert torch.equal(head.scaled, whole.scaled[:, :count])


def test_ranking_puts_equal_values_in_order_of_their_ids():
    found = ranked(torch.tensor([[0.0, -1.0, 0.0, -1.0, 0.0]]))
    assert found.ids.tolist() == [[0, 2, 4, 1, 3]]


def test_the_mass_of_a_row_is_the_same_in_any_company():
    logits = torch.randn(33, 5003, generator=torch.Generator().manual_seed(1)) * 3
    scaled = scale(logits, torch.full((33, 1), 0.8))
    whole = total_mass(scaled)
    expected = scaled.double().exp().sum(-1, keepdim=True)
    assert torch.allclose(whole * 2.0**-44, expected.float(), rtol=1e-6)
    for count in range(1, 34):
        assert torch.equal(total_mass(scaled[:count].clone()), whole[:count])
