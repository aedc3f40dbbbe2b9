"""Log-probabilities: of the unmodified logits, in a fixed order."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.sampling.logprobs import top_logprobs


def test_values_are_natural_logarithms_of_the_softmax():
    logits = torch.randn(5, 321, generator=torch.Generator().manual_seed(0)) * 4
    chosen = torch.tensor([0, 320, 7, 9, 100])
    found = top_logprobs(logits, chosen, 4)
    expected = logits.double().log_softmax(-1)
    assert torch.allclose(found.chosen.double(), expected[torch.arange(5), chosen], atol=1e-5)
    assert torch.allclose(found.values.double(), expected.topk(4).values, atol=1e-5)
    assert torch.equal(found.ids, expected.topk(4).indices)


def test_no_alternatives_still_gives_the_chosen_one():
    found = top_logprobs(torch.zeros(2, 4), torch.tensor([1, 2]), 0)
    assert found.ids.shape == found.values.shape == (2, 0)
    assert torch.allclose(found.chosen, torch.full((2,), 0.25).log())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([-3.0, -0.0, 0.0, 1e-30, 2.0, -1e30]), min_size=1), st.data())
def test_equal_logits_are_listed_by_ascending_id(row, data):
    k = data.draw(st.integers(0, len(row)))
    found = top_logprobs(torch.tensor([row]), torch.tensor([0]), k)
    expected = sorted(range(len(row)), key=lambda token: (-row[token], token))[:k]
    assert found.ids.tolist() == [expected]


def test_a_row_is_the_same_in_any_company():
    logits = torch.randn(33, 4999, generator=torch.Generator().manual_seed(2))
    chosen = torch.arange(33)
    whole = top_logprobs(logits, chosen, 5)
    for count in (1, 2, 3, 7, 16, 32):
        part = top_logprobs(logits[:count].clone(), chosen[:count], 5)
        assert all(torch.equal(a, b[:count]) for a, b in zip(part, whole, strict=True))
