"""Remedies: best with, less best without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alula.cost.allreduce import AllReduce
from alula.cost.draft import Acceptance, chain
from alula.cost.estimate import Question, estimate
from alula.cost.formats import FORMATS
from alula.cost.machine import link_allreduce, remedy_tables
from alula.cost.remedies import fewer_rows, remedies, worth
from alula.cost.round import best_choice, chains
from priced import machine, setting


def _others() -> dict[str, tuple[AllReduce, str]]:
    where = machine()
    least = (link_allreduce(where, 8), "a kernel")
    return {**remedy_tables(where, 8), "least": least}


def test_worth_is_the_difference_of_two_bests() -> None:
    own, acceptance, draft = setting(host_s=0.004), Acceptance((0.6,), ""), chain(3)
    now = best_choice(own, acceptance, [draft, *chains()])
    for remedy in remedies(own, _others()):
        found = worth(remedy, now, draft, acceptance)
        everything = [remedy.setting.plain_tok_s()]
        everything += [
            remedy.setting.speculative_tok_s(each, acceptance.tau(each.depth)) for each in chains()
        ]
        assert found.gain_tok_s == pytest.approx(max(everything) - now.tok_s)


def test_a_cheaper_allreduce_can_turn_speculation_into_a_loss() -> None:
    own, acceptance, draft = setting(host_s=0.004), Acceptance((0.5,), ""), chain(3)
    now = best_choice(own, acceptance, [draft])
    assert now.draft is not None
    free = next(r for r in remedies(own, {}) if r.name == "all-reduce: free")
    found = worth(free, now, draft, acceptance)
    assert found.break_even > own.break_even(draft)
    assert found.plain_tok_s - own.plain_tok_s() > found.gain_tok_s
    assert free.setting.speculative_tok_s(draft, acceptance.tau(3)) < found.plain_tok_s


def test_fewer_rows_are_worth_more_than_any_allreduce_to_a_large_draft() -> None:
    own, acceptance = setting(host_s=0.004), Acceptance((0.5,), "")
    assert fewer_rows(own, chain(15), acceptance) > 0
    assert fewer_rows(own, chain(2), acceptance) == pytest.approx(0)


def test_remedies_that_the_layout_does_not_allow_are_left_out() -> None:
    single = setting("llama-3.1-8b", "1x-h100")
    assert {r.name for r in remedies(single, {})} == {
        "half the kernels fused",
        "attention in fp8",
        "attention in int4-g32",
    }


def test_a_remedy_already_taken_is_left_out() -> None:
    own = setting(layout="ep")
    own = replace(own, layout=replace(own.layout, fused_norm=True))
    names = {remedy.name for remedy in remedies(own, {})}
    assert "expert parallelism, all-to-all" in names
    assert not names & {"all-reduce and norm fused", "expert parallelism, all-reduce"}


def test_attention_is_not_stored_in_more_bytes_than_it_has() -> None:
    own = setting()
    small = replace(own, shape=own.shape.with_attention(FORMATS["fp8"]))
    names = {remedy.name for remedy in remedies(small, {})}
    assert {"attention in int4-g32", "attention replicated in int4-g32"} <= names
    assert not names & {"attention in fp8", "attention replicated in fp8"}


def test_a_remedy_that_takes_more_memory_than_there_is_says_so() -> None:
    own = setting("llama-3.3-70b", "8x-rtx-5090")
    found = estimate(machine("8x-rtx-5090"), own, Question(chain(3), None))
    needs = {worth.remedy.name: worth.remedy.needs for worth in found.worths}
    assert found.fits
    # 24.16 GB of attention + an eighth of the other 116.95 GB + 0.34 GB of keys
    assert needs["attention replicated"] == "39.12 GB on each GPU, which has 32.00 GB"
    assert needs["attention in fp8"] == "a check of the model's accuracy"
