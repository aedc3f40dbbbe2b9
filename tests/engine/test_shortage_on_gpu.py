"""A capture that runs out of memory says so, wherever it does, and the engine can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alula.bench.random_engine import NoText
from alula.bench.random_weights import SMOLLM2, random_decoder
from alula.engine.rounds import CapturedRounds
from alula.errors import ShortageError
from alula.sampling.params import SamplingParams
from exactness import engine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
MB = 1 << 20
SEQUENCES = 16


@contextmanager
def at_most(extra: int) -> Iterator[None]:
    """This process may take so many bytes more."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def answers(made: Any) -> list[list[int]]:
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0)
    requests = [made.add([n, n + 1, n + 2], params) for n in range(SEQUENCES)]
    for _ in made.follow(requests):
        pass
    return [request.answers[0].sequence.output_ids for request in requests]


def test_the_tokens_come_once_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = random_decoder(SMOLLM2, torch.device("cuda"))
    model: Any = SimpleNamespace(decoder=decoder, tokenizer=NoText(SMOLLM2))
    expected = answers(engine(model, graphs=False, max_sequences=SEQUENCES))
    capture, failures = CapturedRounds._capture, set()
    for megabytes in (0, 2, 4, 8, 16, 30, 60):

        def capture_short(self: Any, size: Any, extra: int = megabytes * MB) -> Any:
            with at_most(extra):
                return capture(self, size)

        made = engine(model, max_sequences=SEQUENCES)
        with monkeypatch.context() as patched:
            patched.setattr(CapturedRounds, "_capture", capture_short)
            try:
                assert answers(made) == expected
            except ShortageError as error:
                failures.add(megabytes)
                assert "a captured round of" in error.what
                assert "--no-graphs" in error.fix
                for request in list(made._requests):
                    made.abort(request)
        assert answers(made) == expected, megabytes
    assert {0, 2} <= failures, failures
    assert 60 not in failures, failures
