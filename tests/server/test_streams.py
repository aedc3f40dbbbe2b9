"""What a slow reader leaves is joined, and takes no more room than the answer."""

from __future__ import annotations

import asyncio

import pytest

from alula.server.messages import Finish, Logprob, Piece, Problem
from alula.server.streams import EngineError, Stream

END = Finish("stop", None, 1, 3, 0, 0, 1, 1, [], [])


def piece(number: int, text: str, index: int = 0, finish: Finish | None = None) -> Piece:
    logprobs = [Logprob(ord(text), -1.0, [])]
    return Piece(number, index, text, [ord(text)], [False], logprobs, finish)


def collect(stream: Stream) -> list[Piece]:
    async def all_of() -> list[Piece]:
        return [piece async for piece in stream.pieces()]

    return asyncio.run(all_of())


def test_pieces_of_one_sample_are_joined_until_they_are_read() -> None:
    stream = Stream(range(7, 9), 2, lambda _: None)
    for number in (7, 8):
        for index in (0, 1):
            for text in "abc":
                stream.put(piece(number, text, index, END if text == "c" else None))
    found = collect(stream)
    assert [(part.index, part.text) for part in found] == [(n, "abc") for n in range(4)]
    for part in found:
        assert part.token_ids == [97, 98, 99]
        assert part.logprobs is not None
        assert [entry.token_id for entry in part.logprobs] == part.token_ids
        assert part.finish == END


def test_an_error_comes_after_what_came_before() -> None:
    stream = Stream(range(1), 1, lambda _: None)
    stream.put(piece(0, "a"))
    stream.fail(Problem("EngineDied", "it died", "a signal", "start it"))

    async def scenario() -> None:
        pieces = stream.pieces()
        assert (await anext(pieces)).text == "a"
        with pytest.raises(EngineError, match="it died"):
            await anext(pieces)

    asyncio.run(scenario())


def test_a_stream_is_released_when_all_samples_have_ended() -> None:
    released: list[Stream] = []
    stream = Stream(range(1), 2, released.append)
    stream.put(piece(0, "a", 0, END))
    assert not released
    stream.put(piece(0, "b", 1, END))
    assert released == [stream]
    assert stream.complete


def test_a_grammar_that_fails_is_an_error_and_no_end() -> None:
    stream = Stream(range(1), 1, lambda _: None)
    aborted = Finish("abort", None, 1, 1, 0, 0, 1, 1, [], [])
    stream.put(piece(0, "a", 0, aborted))
    assert not stream.complete
    with pytest.raises(EngineError, match="grammar"):
        collect(stream)
