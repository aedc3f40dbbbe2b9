"""A heart counts silence, and only while this process itself runs."""

from __future__ import annotations

import asyncio
import time

from alula.server.heart import Heart


def test_silence_stops_it_and_signs_of_life_do_not() -> None:
    async def scenario() -> None:
        heart = Heart(0.4)
        watching = asyncio.create_task(heart.stopped())
        await asyncio.sleep(0.6)
        assert not watching.done(), "nothing is expected before the start"
        heart.start()
        for _ in range(8):
            await asyncio.sleep(0.1)
            heart.beat()
        assert not heart.red
        await asyncio.wait_for(watching, 5)
        assert heart.red
        assert "0.4 s" in heart.problem().why

    asyncio.run(scenario())


def test_the_time_that_this_process_slept_does_not_count() -> None:
    async def scenario() -> None:
        heart = Heart(2.0)
        heart.start()
        watching = asyncio.create_task(heart.stopped())
        await asyncio.sleep(0.05)
        time.sleep(2.5)
        await asyncio.sleep(0.3)
        assert not heart.red
        watching.cancel()

    asyncio.run(scenario())
