import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.training.duplicates import NearDuplicates, cut_loop, repetition, signature

PLAIN = list(range(60))
LOOP = [1, 2, 3, 4, 5]


def test_repetition_is_the_share_of_four_grams_seen_before():
    assert repetition(PLAIN) == 0
    assert repetition([7] * 14) == pytest.approx(10 / 11)
    assert repetition([1, 2, 3]) == 0


def test_a_loop_is_cut_where_it_begins():
    begun = PLAIN + LOOP
    assert cut_loop(begun + 20 * LOOP) == begun
    assert cut_loop(20 * LOOP) == LOOP


@given(st.lists(st.integers(0, 500), max_size=80))
def test_text_that_hardly_repeats_is_left_alone(tokens):
    kept = cut_loop(tokens)
    assert kept == tokens[: len(kept)]
    assert kept == tokens or repetition(tokens) > 0.3


def _jaccard(a, b):
    grams = [{tuple(x[i : i + 8]) for i in range(len(x) - 7)} for x in (a, b)]
    return len(grams[0] & grams[1]) / len(grams[0] | grams[1])


def test_signatures_estimate_the_jaccard_index():
    dice = random.Random(0)
    errors = []
    for changes in range(0, 30, 2):
        text = [dice.randrange(1000) for _ in range(200)]
        other = list(text)
        for place in dice.sample(range(200), changes):
            other[place] = 2000
        estimate = float((signature(text) == signature(other)).mean())
        errors.append(abs(estimate - _jaccard(text, other)))
    assert np.mean(errors) < 0.06 and max(errors) < 0.2


def test_near_duplicates_are_kept_once():
    dice = random.Random(1)
    texts = [[dice.randrange(50000) for _ in range(90)] for _ in range(300)]
    near = NearDuplicates()
    assert all(near.add(signature(text)) for text in texts)
    again = [[*text[:-1], 5] for text in texts]
    assert not any(near.add(signature(text)) for text in again)
    remembered = NearDuplicates(signature(text) for text in texts)
    assert not remembered.add(signature(texts[17]))


def test_short_texts_have_signatures():
    assert (signature([]) == signature([])).all()
    assert (signature([1, 2]) != signature([1, 3])).any()
