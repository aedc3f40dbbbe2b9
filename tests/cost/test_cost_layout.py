"""Layouts: their bytes add up, and what cannot be divided is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.cost.layout import LAYOUTS, check, held, layout_named, possible_ranks
from alula.cost.reading.model import find_model, known_models
from alula.errors import UsageError


@given(
    st.sampled_from(known_models()), st.sampled_from(LAYOUTS), st.sampled_from([1, 2, 3, 4, 8, 16])
)
def test_the_bytes_of_all_ranks_add_up_to_the_model(name: str, layout: str, ranks: int) -> None:
    shape, spread = find_model(name), layout_named(layout, ranks)
    if ranks not in possible_ranks(shape, spread):
        return
    parts = held(shape, spread)
    whole = sum(part.bytes_per_gpu * ranks / part.copies for part in parts)
    assert whole == pytest.approx(sum(matrix.stored_bytes for matrix in shape.matrices()))
    assert all(1 <= part.copies <= ranks and ranks % part.copies == 0 for part in parts)


def test_key_value_heads_are_copied_where_ranks_outnumber_them() -> None:
    shape = find_model("qwen3-235b-a22b")
    copies = {part.matrix.name: part.copies for part in held(shape, layout_named("tp", 8))}
    assert (copies["kv"], copies["q"], copies["experts"], copies["gate"]) == (2, 1, 1, 8)


def test_replicated_attention_is_on_every_rank() -> None:
    shape = find_model("kimi-k2.5")
    replicated = held(shape, layout_named("replicated-attention", 8))
    sharded = held(shape, layout_named("tp", 8))
    more = sum(part.bytes_per_gpu for part in replicated)
    more -= sum(part.bytes_per_gpu for part in sharded)
    assert more / 1e9 == pytest.approx(9.18, abs=0.01)


@pytest.mark.parametrize(
    ("model", "layout", "ranks", "named"),
    [
        ("smollm2", "tp", 8, "9 attention heads"),
        ("smollm2", "tp", 2, "9 attention heads"),
        ("llama-3.1-8b", "ep", 8, "no experts"),
        ("qwen3-235b-a22b", "ep", 256, "256 ranks are more than its 128 experts"),
        ("kimi-k2.5", "tp", 7, "divided by 7"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_can(
    model: str, layout: str, ranks: int, named: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        check(find_model(model), layout_named(layout, ranks))
    if "256" not in named:
        assert named in refusal.value.why
    assert "take" in refusal.value.fix


def test_more_ranks_than_experts_is_refused_as_that() -> None:
    shape = find_model("deepseek-v3")
    with pytest.raises(UsageError, match="512 ranks are more than its 256 experts"):
        check(shape, layout_named("ep", 512).__class__(512, "replicated", "expert"))


def test_an_unknown_layout_lists_all() -> None:
    with pytest.raises(UsageError) as refusal:
        layout_named("pp", 8)
    assert "replicated-attention" in refusal.value.why
