"""Sampling parameters: every value outside its range is refused by name."""

import math

import pytest

from alula.errors import UsageError
from alula.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 1.5),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", [1]),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", 1),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 3),
        ("stop_token_ids", "ab"),
        ("max_tokens", 0),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name, value):
    with pytest.raises(UsageError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.why
    assert caught.value.fix


def test_the_borders_of_the_ranges_are_accepted():
    SamplingParams(temperature=0, top_k=-1, top_p=1, min_p=0, max_tokens=1, logprobs=0, seed=0)
    SamplingParams(top_p=1e-9, min_p=1.0, logprobs=20, seed=2**64 - 1, presence_penalty=-2.0)


def test_stop_strings_and_ids_become_tuples():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams().stop == ()
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)


def test_a_bias_changed_afterwards_does_not_change_the_request():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.inf
    assert params.logit_bias == {1: 2.0}


def test_what_a_request_needs_follows_from_its_values():
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=1e-50).greedy
    assert not SamplingParams(temperature=1e-3).greedy
    assert not SamplingParams(top_k=-1).has_filters
    assert SamplingParams(top_k=1).has_filters
    assert SamplingParams(top_p=0.9).has_filters
    assert SamplingParams(min_p=0.1).has_filters
    assert not SamplingParams().has_penalties
    assert SamplingParams(repetition_penalty=1.1).has_penalties
    assert SamplingParams(presence_penalty=0.1).has_penalties
    assert SamplingParams(frequency_penalty=-0.1).has_penalties
