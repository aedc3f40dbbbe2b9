"""Grammars are tried in a process that may end at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from llguidance import LLMatcher

from alula.server.grammar_trial import GrammarTrial
from alula.server.messages import Vocabulary
from alula.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def vocabulary(tool_model: Path) -> Vocabulary:
    return Vocabulary.of(Tokenizer.from_folder(tool_model), None)


@asynccontextmanager
async def trying() -> AsyncIterator[GrammarTrial]:
    trial = GrammarTrial()
    try:
        yield trial
    finally:
        await trial.close()


def regex(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)


def test_each_gets_its_own_answer_though_some_give_up(vocabulary: Vocabulary) -> None:
    async def many() -> None:
        async with trying() as trial:
            patterns = [f"[ab]{{{n}}}" if n % 2 else f"[ab{n}" for n in range(1, 13)]
            tasks = [
                asyncio.create_task(trial.fault(regex(pattern), vocabulary)) for pattern in patterns
            ]
            await asyncio.sleep(0.3)
            for task in tasks[::3]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for pattern, fault in zip(patterns, found, strict=True):
                if not isinstance(fault, asyncio.CancelledError):
                    assert (fault is None) == pattern.endswith("}"), pattern

    asyncio.run(many())


def test_a_trial_that_was_ended_idle_costs_nobody_anything(vocabulary: Vocabulary) -> None:
    async def ended() -> None:
        async with trying() as trial:
            assert await trial.fault(regex("a"), vocabulary) is None
            await trial.close()
            assert await trial.fault(regex("b"), vocabulary) is None

    asyncio.run(ended())
