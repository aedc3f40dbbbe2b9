"""Sizes fit each other, or are refused with what would fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.engine import settings as module
from alula.engine.settings import Capacity, Settings, capacity
from alula.errors import UsageError

CPU = torch.device("cpu")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what the machine has left, as alula counts it."""
    return lambda size: monkeypatch.setattr(module, "_free_bytes", lambda _: float(size))


def sized(settings: Settings, *, positions: int = 2048, round_rows: int = 9) -> Capacity:
    return capacity(
        settings, positions=positions, round_rows=round_rows, bytes_per_token=1000, device=CPU
    )


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("max_sequences", 0, 1),
        ("max_length", 1, 2),
        ("cache_tokens", 1, 2),
        ("chunk_rows", 0, 1),
        ("page_size", 8, 16),
        ("max_sequences", 2.5, 1),
        ("max_length", "99", 2),
        ("chunk_rows", True, 1),
        ("page_size", None, 16),
        ("max_sequences", 10**9, 1),
    ],
)
def test_a_size_that_cannot_be_is_named(name: str, value: Any, least: int) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be {value!r}") as raised:
        Settings(**{name: value})
    assert f"from {least} to" in raised.value.why


def test_a_cache_follows_the_model_where_memory_allows(free: Any) -> None:
    free(1e12)
    size = sized(Settings())
    assert size.max_length == 2048
    assert 4 * 2048 <= size.pages * 32 <= 4 * 2048 + 4 * 50


def test_little_memory_shortens_the_context(free: Any) -> None:
    free(1000 * 500)
    size = sized(Settings())
    assert size.pages == 500 // 32
    assert size.max_length == 480 - 18 - 32


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match="max_length 4096 is beyond the model's context"):
        sized(Settings(max_length=4096))


def test_a_context_beyond_the_cache_is_refused_with_the_cache_it_needs() -> None:
    with pytest.raises(UsageError, match="a context of 1000 tokens does not fit") as raised:
        sized(Settings(max_length=1000, cache_tokens=512))
    assert "at least 1050" in raised.value.fix
    enough = sized(Settings(max_length=1000, cache_tokens=1050 + 31))
    assert enough.max_length == 1000


def test_a_cache_smaller_than_one_round_is_refused_with_what_it_needs() -> None:
    with pytest.raises(UsageError, match="a cache of 40 tokens is too small"):
        sized(Settings(cache_tokens=40))


@given(
    st.integers(64, 4096),
    st.one_of(st.none(), st.integers(2, 4096)),
    st.integers(1, 40),
    st.sampled_from([16, 32, 64]),
)
def test_the_longest_sequence_always_fits_the_cache(cache, length, round_rows, page_size):
    """With the room that a round and the draft behind it need."""
    wish = Settings(max_length=length, cache_tokens=cache, page_size=page_size)
    try:
        size = sized(wish, positions=4096, round_rows=round_rows)
    except UsageError:
        return
    assert size.pages * page_size <= cache
    assert 2 <= size.max_length <= 4096
    assert size.max_length + 2 * round_rows <= size.pages * page_size
    assert length is None or size.max_length == length
