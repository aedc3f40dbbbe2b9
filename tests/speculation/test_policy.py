import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.speculation.ledger import Ledger
from alula.speculation.policy import DepthPolicy, RowCost, Survival, choose_depth

FLAT = RowCost({1: 0.050, 5: 0.052, 8: 0.055})
STEEP = RowCost({1: 0.010, 2: 0.020, 8: 0.080})

tables = st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1.0), min_size=1, max_size=8)


@given(tables)
def test_a_row_more_never_costs_less(table):
    cost = RowCost(table)
    seconds = [cost.at(rows) for rows in range(1, 130)]
    assert all(left <= right + 1e-12 for left, right in pairwise(seconds))
    assert min(table.values()) - 1e-12 <= seconds[0]


def test_a_rising_table_is_kept_and_read_between_its_entries():
    cost = RowCost({1: 1.0, 4: 2.5, 8: 4.5})
    assert [cost.at(rows) for rows in (1, 2, 4, 6, 8, 16)] == [1.0, 1.5, 2.5, 3.5, 4.5, 9.0]


def test_neighbours_that_fall_are_averaged():
    cost = RowCost({1: 1.0, 2: 4.0, 3: 2.0, 4: 5.0})
    assert [cost.at(rows) for rows in (1, 2, 3, 4)] == [1.0, 3.0, 3.0, 5.0]


def test_a_depth_that_was_not_reached_is_not_observed():
    seen, unseen = Survival(), Survival()
    for _ in range(50):
        seen.observe(drafted=4, accepted=1)
        unseen.observe(drafted=2, accepted=1)
    assert seen.acceptance(4) == unseen.acceptance(4)
    first, second, third, _ = seen.acceptance(4)
    assert first > 0.85
    assert second < 0.2
    assert third == pytest.approx(0.8 * second)


def test_without_evidence_acceptance_starts_low_and_falls():
    assert Survival().acceptance(3) == pytest.approx([0.5, 0.4, 0.32])
    assert Survival().expected(2)[-1] == pytest.approx(0.5 + 0.5 * 0.4)


def test_survival_follows_a_change():
    survival = Survival()
    for accepted in [3] * 100 + [0] * 60:
        survival.observe(3, accepted)
    assert survival.acceptance(1)[0] < 0.2


def test_a_plain_round_is_no_observation():
    survival = Survival()
    survival.observe(0, 0)
    assert survival.acceptance(2) == Survival().acceptance(2)


def test_after_forgetting_new_evidence_weighs_as_at_the_start():
    kept, forgot = _survival(0.0), _survival(0.0)
    forgot.forget()
    for survival in (kept, forgot):
        for _ in range(4):
            survival.observe(1, 1)
    assert kept.acceptance(1)[0] < 0.25
    assert forgot.acceptance(1)[0] > 0.45


def _survival(rate: float, depth: int = 8) -> Survival:
    survival = Survival()
    generator = random.Random(0)
    for _ in range(400):
        accepted = 0
        while accepted < depth and generator.random() < rate:
            accepted += 1
        survival.observe(depth, accepted)
    return survival


def test_drafting_that_pays_is_chosen_and_explained():
    choice = choose_depth(FLAT, [_survival(0.8)], 7, 0.003)
    assert choice.depth >= 3
    assert choice.seconds == pytest.approx(FLAT.at(1 + choice.depth) + 0.003 * choice.depth)
    assert f"depth {choice.depth}" in choice.reason
    assert f"{choice.seconds * 1e3:.2f} ms" in choice.reason
    assert "\n" not in choice.reason


def test_drafting_that_does_not_pay_is_not_chosen():
    assert choose_depth(STEEP, [_survival(0.8)], 7, 0.001).depth == 0
    assert choose_depth(FLAT, [_survival(0.02)], 7, 0.003).depth == 0
    assert choose_depth(FLAT, [_survival(0.8)], 0, 0.003).depth == 0


def test_a_gain_within_the_margin_is_not_worth_a_change():
    survival = _survival(0.5)
    gain = (1 + survival.expected(1)[0]) * FLAT.at(1) / (FLAT.at(2) + 0.003)
    assert choose_depth(FLAT, [survival], 1, 0.003, margin=gain - 1 - 1e-6).depth == 1
    assert choose_depth(FLAT, [survival], 1, 0.003, margin=gain - 1 + 1e-6).depth == 0


@given(
    tables, st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(0, 6), st.floats(0, 0.5)
)
def test_the_depth_has_the_best_rate(table, rates, deepest, draft):
    cost, survivals = RowCost(table), [_survival(rate) for rate in rates]
    batch = len(survivals)

    def rate(depth):
        tokens = sum(1 + sum(survival.expected(depth)[-1:]) for survival in survivals)
        return tokens / (cost.at(batch * (1 + depth)) + depth * draft)

    best = max(range(deepest + 1), key=rate)
    choice = choose_depth(cost, survivals, deepest, draft)
    if rate(best) <= 1.03 * batch / cost.at(batch):
        best = 0
    assert choice.depth == best or rate(choice.depth) == pytest.approx(rate(best))


def test_a_tree_is_priced_by_its_nodes():
    chain = choose_depth(STEEP, [_survival(0.9)], 2, 0.0, shallowest=1)
    tree = choose_depth(
        STEEP, [_survival(0.9)], 2, 0.0, nodes=lambda depth: 4 * depth, shallowest=1
    )
    assert tree.seconds == pytest.approx(STEEP.at(5))
    assert chain.seconds < tree.seconds


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 6), st.booleans()), max_size=200),
    st.floats(0, 0.2),
    st.floats(0, 10),
)
def test_a_ledger_bounds_the_loss_whatever_is_accepted(rounds, eps, allowance):
    ledger, taken, plain = Ledger(allowance, eps, cap=3.0), 0.0, 0.0
    for seconds, accepted, wanted in rounds:
        drafts = wanted and ledger.permits(seconds, 1.0)
        spent, worth = (seconds, 1.0 + accepted) if drafts else (1.0, 1.0)
        ledger.record(spent, worth)
        taken, plain = taken + spent, plain + worth
        assert taken <= (1 + eps) * plain + allowance + 1e-9


def test_a_round_is_permitted_up_to_the_bound_and_no_further():
    ledger = Ledger(allowance=0.5, eps=0.1)
    assert ledger.permits(1.59, 1.0)
    assert not ledger.permits(1.61, 1.0)
    ledger.record(10.0, 10.0)
    assert ledger.permits(2.59, 1.0)
    assert not ledger.permits(2.61, 1.0)


def test_gains_beyond_the_cap_are_dropped():
    ledger = Ledger(allowance=0.0, eps=0.0, cap=2.0)
    ledger.record(1.0, 100.0)
    assert ledger.permits(3.0, 1.0)
    assert not ledger.permits(3.1, 1.0)


def _run(policy: DepthPolicy, cost: RowCost, accepted_of, rounds: int, draft=0.003, catch_up=0.0):
    """Drive a policy with exact costs; yields depth, total seconds, plain seconds."""
    survival, taken, plain, was_off = Survival(), 0.0, 0.0, False
    for number in range(rounds):
        price = catch_up if was_off else 0.0
        choice = policy.choose(cost, [survival], draft, price)
        accepted = min(choice.depth, accepted_of(number))
        survival.observe(choice.depth, accepted)
        seconds = choice.seconds + (price if choice.depth else 0.0)
        policy.record(choice, 1 + accepted, seconds)
        taken, plain = taken + seconds, plain + (1 + accepted) * choice.plain_seconds
        was_off = choice.depth == 0
        yield choice.depth, taken, plain


@given(
    tables,
    st.floats(0, 0.3),
    st.lists(st.integers(0, 5), min_size=1, max_size=50),
    st.integers(0, 9),
)
def test_the_policy_never_loses_more_than_its_bound(table, draft, pattern, seed):
    cost = RowCost(table)
    generator = random.Random(seed)

    def accepted(number):
        return pattern[number % len(pattern)] if number % 100 < 60 else generator.randrange(6)

    allowance = 5 * cost.at(1)
    policy = DepthPolicy(Ledger(allowance, 0.03), max_depth=5)
    for _, taken, plain in _run(policy, cost, accepted, 300, draft, catch_up=draft / 2):
        assert taken <= 1.03 * plain + allowance + 1e-9


def test_a_useless_drafter_is_probed_ever_more_rarely():
    policy = DepthPolicy(Ledger(10.0), max_depth=4)
    depths = [depth for depth, _, _ in _run(policy, FLAT, lambda _: 0, 5000)]
    assert 0 < sum(depth > 0 for depth in depths[:500]) < 100
    assert 0 < sum(depth > 0 for depth in depths[2500:]) <= 16


def test_a_drafter_that_improves_is_found_again():
    policy = DepthPolicy(Ledger(10.0), max_depth=4)
    depths = [d for d, _, _ in _run(policy, FLAT, lambda n: 4 if n >= 1000 else 0, 2600)]
    assert sum(depth > 0 for depth in depths[900:1000]) <= 4
    assert min(depths[2400:]) == 4


def test_a_good_drafter_reaches_the_best_depths_speed():
    generator = random.Random(3)

    def accepted(_):
        count = 0
        while generator.random() < 0.7:
            count += 1
        return count

    policy = DepthPolicy(Ledger(0.25), max_depth=6)
    *_, (_, taken, plain) = _run(policy, FLAT, accepted, 1500)
    best = max(
        sum(0.7**j for j in range(depth + 1)) * FLAT.at(1) / (FLAT.at(1 + depth) + depth * 0.003)
        for depth in range(7)
    )
    assert plain / taken > 0.95 * best


def test_without_credit_nothing_is_drafted():
    policy = DepthPolicy(Ledger(allowance=0.0, eps=0.0), max_depth=4)
    choice = policy.choose(FLAT, [_survival(0.9)], 0.003)
    assert choice.depth == 0
    assert "ledger" in choice.reason


def test_the_way_back_is_priced():
    survivals = [_survival(0.9)]
    price = choose_depth(FLAT, survivals, 4, 0.003).seconds - FLAT.at(1)
    policy = DepthPolicy(Ledger(allowance=price + 0.01, eps=0.0), max_depth=4)
    assert policy.choose(FLAT, survivals, 0.003, catch_up_seconds=0.009).depth == 4
    assert policy.choose(FLAT, survivals, 0.003, catch_up_seconds=0.011).depth == 0
