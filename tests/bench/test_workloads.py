"""Enough prompts of every kind, and none that is named in vain."""

from __future__ import annotations

import pytest

from alula.bench.workloads import WORKLOADS, select
from alula.errors import UsageError


def test_there_are_at_least_forty_different_prompts() -> None:
    prompts = [workload.prompt for workload in select()]
    assert len(set(prompts)) == len(prompts) >= 40
    assert set(WORKLOADS) == {"rewriting", "code", "lists", "mathematics", "chat", "story"}
    assert len(WORKLOADS["rewriting"]) >= 8


def test_kinds_are_taken_as_named_and_each_once() -> None:
    chosen = select(["story", "chat", "story"], prompts_per_kind=2)
    assert [workload.kind for workload in chosen] == ["story", "story", "chat", "chat"]
    assert chosen[0].prompt == WORKLOADS["story"][0]


@pytest.mark.parametrize(("kinds", "count"), [(["poems"], 1), ([], 0), ([], -1)])
def test_what_does_not_exist_is_refused(kinds: list[str], count: int) -> None:
    with pytest.raises(UsageError):
        select(kinds, count)
