"""Times of launches: the reference table of the case, and what must never fall."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.cost.allreduce import FlatAllReduce
from alula.cost.formats import FORMATS
from alula.cost.layout import LAYOUTS, possible_ranks
from alula.cost.machine import link_allreduce
from alula.cost.reading.model import find_model, known_models
from alula.cost.remedies import ideal_speed, with_allreduce
from alula.cost.shape import Component
from priced import machine, setting

ROWS = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("allreduce", "expected_ms"),
    [
        ("200us", (32.29, 33.3, 35.3, 39.0, 45.5)),
        ("60us", (15.21, 16.2, 18.2, 21.9, 28.4)),
        ("20us", (10.33, 11.3, 13.3, 17.0, 23.5)),
        ("5us", (8.50, 9.5, 11.5, 15.2, 21.7)),
        (None, (11.17, 12.4, 14.9, 20.0, 30.3)),
        ("nccl-tuned-rtx-pro-6000-x8", (11.08, 12.1, 14.0, 18.3, 25.5)),
        ("one-shot-rtx-pro-6000-x8", (9.23, 10.8, 13.7, 17.6, 24.4)),
    ],
)
def test_launches_of_the_case(allreduce: str | None, expected_ms: tuple[float, ...]) -> None:
    own = setting(allreduce=allreduce)
    found_ms = [own.step(rows).total_s * 1e3 for rows in ROWS]
    assert found_ms == pytest.approx(list(expected_ms), rel=0.006)


@pytest.mark.parametrize(
    ("layout", "expected_ms"),
    [
        ("tp", (11.17, 14.90, 30.30)),
        ("replicated-attention", (15.93, 19.29, 32.10)),
        ("ep", (12.81, 17.84, 34.90)),
        ("ep-all-to-all", (14.40, 19.79, 39.36)),
    ],
)
def test_layouts_of_the_case(layout: str, expected_ms: tuple[float, ...]) -> None:
    own = setting(layout=layout)
    found_ms = [own.step(rows).total_s * 1e3 for rows in (1, 4, 16)]
    assert found_ms == pytest.approx(list(expected_ms), rel=0.015)


@pytest.mark.parametrize(
    ("form", "expected_ms"), [("fp8", (11.63, 14.98)), ("int4-g32", (9.75, 13.10))]
)
def test_replicated_attention_in_fewer_bytes(form: str, expected_ms: tuple[float, ...]) -> None:
    own = setting(layout="replicated-attention")
    own = replace(own, shape=own.shape.with_attention(FORMATS[form]))
    found_ms = [own.step(rows).total_s * 1e3 for rows in (1, 4)]
    assert found_ms == pytest.approx(list(expected_ms), rel=0.01)


def test_fusion_saves_launches_alone() -> None:
    own = setting()
    fused = replace(own, layout=replace(own.layout, fused_norm=True))
    half = replace(own, layout=replace(own.layout, launch_share=0.5))
    assert fused.step().total_s * 1e3 == pytest.approx(10.91, rel=0.005)
    assert half.step().total_s * 1e3 == pytest.approx(9.53, rel=0.005)
    assert half.step().exchange_s == own.step().exchange_s


def test_the_split_of_a_plain_step() -> None:
    step = setting().step()
    assert step.memory_s * 1e3 == pytest.approx(4.25, abs=0.02)
    assert step.launch_s * 1e3 == pytest.approx(3.28, abs=0.02)
    assert step.exchange_s * 1e3 == pytest.approx(3.28, abs=0.02)
    assert step.fixed_s * 1e3 == pytest.approx(0.35)


def test_bounds_of_the_case() -> None:
    own = setting()
    assert with_allreduce(own, FlatAllReduce(0.0)).plain_tok_s() == pytest.approx(126.8, rel=2e-3)
    assert own.with_speed(ideal_speed(own.speed)).plain_tok_s() == pytest.approx(294, rel=3e-3)


def test_an_h200_machine_with_the_same_latency() -> None:
    own = setting(on="8x-h200")
    assert own.step().total_s * 1e3 == pytest.approx(5.67, rel=0.01)
    assert [own.step(n).total_s * 1e3 for n in (4, 8, 16)] == pytest.approx(
        [6.9, 8.5, 11.1], rel=0.02
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_analytic_times_never_fall_as_work_grows(data: st.DataObject) -> None:
    name, layout = data.draw(st.sampled_from(known_models())), data.draw(st.sampled_from(LAYOUTS))
    where = machine("8x-rtx-pro-6000")
    shape = find_model(name)
    own = setting("kimi-k2.5", layout=layout)
    ranks = data.draw(st.sampled_from(possible_ranks(shape, own.layout) or [0]))
    if ranks < 2:
        return
    own = replace(own, shape=shape, layout=replace(own.layout, ranks=ranks), drafter=None)
    own = with_allreduce(own, link_allreduce(where, ranks))
    rows, context = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 100_000))
    batch, more = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20))
    base = replace(own, batch=batch, context=context)
    slower = replace(
        link_allreduce(where, ranks), latency_s=link_allreduce(where, ranks).latency_s * (1 + more)
    )
    for larger in (
        base.step(rows + more),
        replace(base, context=context + more * 100).step(rows),
        replace(base, batch=batch + more).step(rows),
        with_allreduce(base, slower).step(rows),
    ):
        before, after = base.step(rows), larger
        assert after.total_s >= before.total_s * (1 - 1e-12)
        for one, other in zip(before.parts, after.parts, strict=True):
            assert other.total_s >= one.total_s * (1 - 1e-12)


def test_long_contexts_cost_the_reading_of_their_keys() -> None:
    short, long = setting(context=1024).step(), setting(context=33 * 1024).step()
    keys = {part.component: part for part in long.parts}[Component.KV]
    assert keys.memory_s > 30 * {p.component: p for p in short.parts}[Component.KV].memory_s
    # 32k tokens more are 2.3 GB on each GPU: 1.6 ms at 80 % of 1792 GB/s
    assert (long.total_s - short.total_s) * 1e3 == pytest.approx(1.6, abs=0.05)


def test_each_sequence_of_a_batch_has_keys_of_its_own() -> None:
    one, many = (
        {work.component: work for work in setting("llama-3.1-8b", "1x-h100", batch=n).works()}
        for n in (1, 4)
    )
    assert many[Component.KV].read_bytes == pytest.approx(4 * one[Component.KV].read_bytes)
    assert one[Component.KV].read_bytes == pytest.approx(1025 * 131_072)
    assert many[Component.DENSE].read_bytes == one[Component.DENSE].read_bytes


def test_ranks_that_share_a_key_value_head_each_read_it() -> None:
    own = setting("qwen3-235b-a22b")  # 4 key-value heads on 8 ranks
    keys = {work.component: work for work in own.works()}[Component.KV]
    assert keys.read_bytes == pytest.approx(1025 * own.shape.kv_bytes_per_token / 4)


def test_many_rows_are_bound_by_operations() -> None:
    own = setting("llama-3.1-8b", "1x-h100")
    dense = {part.component: part for part in own.step(2048).parts}[Component.DENSE]
    work = {each.component: each for each in own.works(2048)}[Component.DENSE]
    assert dense.memory_s == pytest.approx(own.speed.compute_s(work.flops))
    assert dense.memory_s > 2 * own.speed.memory_s(work.read_bytes)
