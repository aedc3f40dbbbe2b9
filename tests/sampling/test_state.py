"""The sampling state: what a line remembers, and that it forgets it."""

import math

import pytest

from alula.errors import ModelError, UsageError
from alula.ops.sample import Wants
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState

PENALISED = SamplingParams(presence_penalty=1.0)


def test_admission_sets_a_line_and_release_makes_it_greedy_again():
    state = SamplingState(3, 10)
    params = SamplingParams(temperature=0.5, top_k=4, top_p=0.9, min_p=0.25, repetition_penalty=1.5)
    state.admit(1, params, -7, [1, 2])
    assert state.temperature.tolist() == [0.0, 0.5, 0.0]
    assert state.top_k.tolist() == [10, 4, 10]
    assert state.log_min_p[1].item() == pytest.approx(math.log(0.25))
    assert state.key.tolist() == [0, -7, 0]
    assert state.adjusts(1)
    assert not state.all_greedy([0, 1])
    assert state.all_greedy([0, 2])
    state.release(1)
    assert state.all_greedy([0, 1, 2])
    assert not state.adjusts(1)
    assert state.temperature.tolist() == [0.0] * 3
    assert state.top_k.tolist() == [10] * 3
    assert state.repetition.tolist() == [1.0] * 3


def test_a_top_k_beyond_the_vocabulary_is_off():
    state = SamplingState(1, 10)
    state.admit(0, SamplingParams(top_k=11), 0, [])
    assert state.top_k.tolist() == [10]


def test_counts_and_biases_take_memory_only_when_asked_for():
    state = SamplingState(2, 10)
    state.admit(0, SamplingParams(), 0, [1])
    assert state.output_counts is state.prompt_seen is state.bias is None
    state.admit(1, PENALISED, 0, [1])
    assert state.output_counts is not None
    assert state.bias is None


def test_admission_counts_what_a_preempted_sequence_has_put_out():
    state = SamplingState(3, 5)
    state.admit(2, PENALISED, 0, [4], output_ids=[0, 3, 0])
    state.admit(0, PENALISED, 0, [])
    assert state.output_counts.tolist() == [[0] * 5, [0] * 5, [2, 0, 0, 1, 0]]
    assert state.prompt_seen[2].tolist() == [False] * 4 + [True]


def test_a_new_sequence_on_a_line_inherits_nothing():
    state = SamplingState(1, 4)
    state.admit(0, SamplingParams(presence_penalty=1.0, logit_bias={1: 5.0}), 0, [0], [1, 1])
    state.release(0)
    state.admit(0, SamplingParams(presence_penalty=1.0, logit_bias={2: 1.0}), 0, [3], [2])
    assert state.output_counts.tolist() == [[0, 0, 1, 0]]
    assert state.prompt_seen.tolist() == [[False, False, False, True]]
    assert state.bias.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    state.admit(0, SamplingParams(), 0, [])
    assert state.bias.tolist() == [[0.0] * 4]


def test_a_bias_outside_the_vocabulary_is_refused_and_leaves_the_line_alone():
    state = SamplingState(1, 4)
    with pytest.raises(UsageError, match="token 4"):
        state.admit(0, SamplingParams(logit_bias={4: 1.0}), 9, [])
    assert state.key.tolist() == [0]


def test_what_lines_want_is_what_their_requests_ask_for():
    state = SamplingState(5, 10)
    asked = [
        SamplingParams(temperature=0.0, top_k=3),
        SamplingParams(),
        SamplingParams(top_p=0.5),
        SamplingParams(top_k=2, top_p=0.5, logit_bias={1: 1.0}),
    ]
    for line, params in enumerate(asked):
        state.admit(line, params, 0, [])
    assert state.wants([0, 4]) == Wants(noise=False, filters=0, adjustments=False)
    assert state.wants([0, 1]) == Wants(noise=True, filters=0, adjustments=False)
    assert state.wants([2, 1]) == Wants(noise=True, filters=1, adjustments=False)
    assert state.wants(range(5)) == Wants(noise=True, filters=2, adjustments=True)


def test_the_settings_that_kernels_read_are_the_states_own_tensors():
    state = SamplingState(2, 10)
    settings = state.settings()
    state.admit(1, SamplingParams(temperature=0.5, top_k=4, presence_penalty=1.0), 8, [3])
    assert settings.temperature.tolist() == [0.0, 0.5]
    assert settings.top_k.tolist() == [10, 4]
    assert settings.key.tolist() == [0, 8]
    assert settings.prompt_seen is None
    assert state.settings().prompt_seen is state.prompt_seen


def test_a_vocabulary_whose_masses_might_overflow_is_refused():
    SamplingState(1, 2**19 - 1, "meta")
    with pytest.raises(ModelError, match="524288 tokens"):
        SamplingState(1, 2**19, "meta")
