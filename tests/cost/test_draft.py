"""Draft shapes and acceptance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.cost.draft import (
    chain,
    from_conditional,
    from_survival,
    from_tau,
    parse_draft,
)
from alula.errors import UsageError

shares = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)


def test_shapes_are_read_as_the_engine_spells_them() -> None:
    assert parse_draft("chain:3") == chain(3)
    tree = parse_draft("tree:5x4:15")
    assert (tree.depth, tree.width, tree.nodes, tree.rows) == (5, 4, 15, 16)
    assert tree.name == "tree:5x4:15"


@pytest.mark.parametrize("text", ["chain:0", "chain", "tree:5x4", "tree:5x4:2", "tree:1x2:9", "3"])
@pytest.mark.parametrize("more", ["", "9" * 5000])
def test_impossible_shapes_are_refused(text: str, more: str) -> None:
    with pytest.raises(UsageError, match="--draft"):
        parse_draft(text + more)


@pytest.mark.parametrize("text", ["chain:99", "tree:3x4:2000", "tree:3x99:3", "chain:３"])
def test_absurd_shapes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--draft"):
        parse_draft(text)


@given(shares, st.integers(1, 10))
def test_conditional_and_cumulative_say_the_same(given_shares: list[float], depth: int) -> None:
    conditional = from_conditional(given_shares)
    cumulative = from_survival(conditional.survival(len(given_shares)))
    assert cumulative.tau(depth) == pytest.approx(conditional.tau(depth))


@given(st.integers(1, 12), st.floats(0, 1))
def test_tau_is_met_by_the_acceptance_found_for_it(depth: int, share: float) -> None:
    tau = 1 + share * depth
    assert from_tau(tau, chain(depth)).tau(depth) == pytest.approx(tau, abs=1e-6)


def test_tau_counts_the_bonus_token() -> None:
    assert from_conditional([0.5, 0.5, 0.5]).tau(3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert from_conditional([0.0]).tau(5) == 1.0


@pytest.mark.parametrize("tau", [0.5, 4.5, float("nan")])
def test_impossible_taus_are_refused(tau: float) -> None:
    with pytest.raises(UsageError, match="impossible"):
        from_tau(tau, chain(3))


def test_a_rising_survival_is_refused_as_conditional() -> None:
    with pytest.raises(UsageError, match="rises") as refusal:
        from_survival([0.5, 0.6])
    assert "--acceptance" in refusal.value.fix


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="not understood"):
        from_conditional([share])


def test_what_lies_beyond_the_given_depths_is_said() -> None:
    assert from_conditional([0.6, 0.5]).origin == "--acceptance, beyond depth 2 as likely as there"
    assert from_survival([0.6]).origin == "--survival, beyond depth 1 as likely as there"
