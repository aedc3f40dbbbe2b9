"""Rounds: break-even by definition, and the reference table of the case."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.cost.draft import Acceptance, Draft, chain
from alula.cost.drafter import joint_work, step_work
from alula.cost.round import best_choice, chains
from alula.cost.step import timed
from alula.cost.work import Load
from priced import setting

HOST_S = 0.004


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["kimi-k2.5", "llama-3.1-8b", "qwen3-235b-a22b"]),
    st.integers(1, 12),
    st.integers(1, 16),
    st.integers(0, 40_000),
    st.floats(0, 0.01),
)
def test_break_even_is_round_over_step(
    model: str, depth: int, batch: int, context: int, host_s: float
) -> None:
    own = setting(model, batch=batch, context=context, host_s=host_s)
    draft = chain(depth)
    needed = own.break_even(draft)
    assert needed == own.round(draft).total_s / own.step().total_s
    assert own.speculative_tok_s(draft, needed) == pytest.approx(own.plain_tok_s())
    assert needed >= 1.0


@pytest.mark.parametrize(
    ("depth", "round_ms", "needed"),
    [
        (1, 16.9, 1.52),
        (2, 18.5, 1.66),
        (3, 20.1, 1.79),
        (4, 21.6, 1.94),
        (5, 23.2, 2.08),
        (7, 26.4, 2.36),
        (15, 39.3, 3.52),
    ],
)
def test_chains_of_the_case(depth: int, round_ms: float, needed: float) -> None:
    own = setting(host_s=HOST_S)
    assert own.round(chain(depth)).total_s * 1e3 == pytest.approx(round_ms, rel=0.012)
    assert own.break_even(chain(depth)) == pytest.approx(needed, rel=0.012)


@pytest.mark.parametrize(
    ("allreduce", "three", "sixteen_rows"),
    [
        ("200us", 1.32, 1.70),
        ("60us", 1.56, 2.29),
        ("20us", 1.78, 2.83),
        ("5us", 1.93, 3.18),
        ("0us", 1.99, 3.34),
        ("nccl-tuned-rtx-pro-6000-x8", 1.73, 2.82),
        ("one-shot-rtx-pro-6000-x8", 2.03, 3.24),
    ],
)
def test_cheaper_communication_raises_break_even(
    allreduce: str, three: float, sixteen_rows: float
) -> None:
    own = setting(allreduce=allreduce, host_s=HOST_S)
    assert own.break_even(chain(3)) == pytest.approx(three, rel=0.012)
    assert own.break_even(Draft(5, 3, 15)) == pytest.approx(sixteen_rows, rel=0.012)


@pytest.mark.parametrize(
    ("share", "best"), [(0.4, 2), (0.5, 2), (0.6, 3), (0.7, 4), (0.8, 5), (0.9, 10)]
)
def test_the_best_chain_grows_with_acceptance(share: float, best: int) -> None:
    own = setting(host_s=HOST_S)
    speculating = [
        (own.speculative_tok_s(draft, Acceptance((share,), "").tau(draft.depth)), draft.depth)
        for draft in chains()
    ]
    assert abs(max(speculating)[1] - best) <= 1


def test_plain_decoding_is_a_choice_too() -> None:
    own = setting(host_s=HOST_S)
    assert best_choice(own, Acceptance((0.1,), ""), chains()).draft is None
    assert best_choice(own, Acceptance((0.9,), ""), chains()).draft is not None
    assert best_choice(own, None, chains()).draft is None


def test_a_batch_emits_more_and_reads_more() -> None:
    one, many = setting(), setting(batch=8)
    assert many.plain_tok_s() > one.plain_tok_s()
    assert many.step().total_s > one.step().total_s
    assert many.break_even(chain(3)) > one.break_even(chain(3))


def test_joining_and_the_first_draft_step_run_over_all_accepted_rows() -> None:
    """At a batch whose operations outweigh the reading, three times the rows take as long again."""
    own = setting("llama-3.1-8b", "1x-h100", batch=4096)
    assert own.drafter is not None
    rows = Load(3, 4096, own.context)
    works = (
        joint_work(own.drafter, own.layout, rows),
        step_work(own.drafter, own.layout, rows),
        step_work(own.drafter, own.layout, Load(1, 4096, own.context)),
    )
    expected_s = sum(part.memory_s for part in timed(works, own.speed))
    assert own.drafting(chain(2)).memory_s == pytest.approx(expected_s)
