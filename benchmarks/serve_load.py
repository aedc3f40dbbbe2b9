"""A crowd of well and badly behaved clients against a running server, and what is left of it.

    alula serve MODEL --port 8000 &
    python benchmarks/serve_load.py http://127.0.0.1:8000 --pid SERVER_PID --seconds 300

Every finished answer is compared with the one that its request gets alone. What is made at its
first use is made before the crowd comes, since it is growth but no leak: the system hands out the
cache's memory as pages are first written, and on the CPU oneDNN keeps a program for each matrix at
each number of rows (about half a megabyte, at most 1024 of them). Give the server a cache that is
soon full (--cache-tokens 16384). Prints one JSON object; exits with 1 where a token is lost or
crossed, something leaks, or /health is slow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import string
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from alula.bench import results

_PACKAGES = ("alula", "torch", "fastapi", "uvicorn", "pyzmq", "msgspec", "llguidance")

SLOW_HEALTH_SECONDS = 0.2
MOST_GROWTH = 1.02
"""Of memory, from the first minute to the end: allocators breathe by as much."""
SAMPLE_SECONDS = 5.0
MOST_ROWS = 160
"""Of a launch of this crowd: each of these numbers is computed before it comes."""
LARGEST_BODY = 4 * 2**20


@dataclass
class Load:
    """One run."""

    url: str
    model: str
    pid: int
    seconds: float
    streams: int
    most_tokens: int
    """Of one answer."""
    outcomes: Counter[str] = field(default_factory=Counter)
    health: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    """Over time: seconds since the crowd came, megabytes and files of each process, free pages."""

    async def run(self) -> dict[str, Any]:
        limits = httpx.Limits(max_connections=self.streams + 8)
        async with httpx.AsyncClient(timeout=120, limits=limits) as self.client:
            bodies = [self.body(number) for number in range(24)]
            self.cases = [(body, await self.whole(body)) for body in bodies]
            await self.fill()
            self.begin = time.monotonic()
            self.end = self.begin + self.seconds
            await asyncio.gather(
                self.watch_health(),
                self.watch_resources(),
                *(self.behave(random.Random(n)) for n in range(self.streams)),
            )
            await self.quiet()
        return self.report()

    def body(self, number: int) -> dict[str, Any]:
        dice = random.Random(number)
        prompt = " ".join(dice.choice(("wing", "tail", "beak", "egg")) for _ in range(number))
        sampled = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
        grammar = {"guided_regex": "([a-z]{4}-){6}end"} if number % 6 == 5 else {}
        length = {
            "max_tokens": dice.randint(self.most_tokens // 6, self.most_tokens),
            "n": 1 + number % 3 // 2,
        }
        return {"model": self.model, "prompt": f"Birds: {prompt}", **sampled, **length, **grammar}

    async def whole(self, body: dict[str, Any]) -> list[str]:
        found = await self.client.post(f"{self.url}/v1/completions", json=body)
        found.raise_for_status()
        return [choice["text"] for choice in found.json()["choices"]]

    async def fill(self) -> None:
        """Ask what nobody asked before: at every length, then until it takes no more free pages."""
        dice = random.Random(-1)
        for length in range(1, MOST_ROWS + 1):
            await self.ask_new(dice, length)
        free = [await self.free_pages()]
        while len(free) < 4 or free[-1] < free[-4]:
            await self.ask_new(dice, 2 * MOST_ROWS)
            free.append(await self.free_pages())

    async def ask_new(self, dice: random.Random, length: int) -> None:
        """A prompt of about `length` tokens that no page holds the beginning of."""
        prompt = "".join(dice.choice(string.ascii_uppercase) for _ in range(length))
        await self.whole({"model": self.model, "prompt": prompt, "max_tokens": 2})

    async def behave(self, dice: random.Random) -> None:
        kinds = [self.stream] * 6 + [self.slow, self.slow, self.leave, self.leave, self.post]
        kinds += [self.oversized, self.malformed]
        while time.monotonic() < self.end:
            kind = dice.choice(kinds)
            outcome = await kind(dice)
            self.outcomes[f"{kind.__name__}: {outcome}"] += 1

    async def post(self, dice: random.Random) -> str:
        body, expected = dice.choice(self.cases)
        return self.compare(body, expected, await self.whole(body))

    async def stream(self, dice: random.Random, pause: float = 0.0, leave_after: int = 0) -> str:
        body, expected = dice.choice(self.cases)
        texts = [""] * len(expected)
        events = 0
        request = body | {"stream": True}
        async with self.client.stream("POST", f"{self.url}/v1/completions", json=request) as got:
            got.raise_for_status()
            async for line in got.aiter_lines():
                if line == "data: [DONE]":
                    return self.compare(body, expected, texts)
                if line:
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        texts[choice["index"]] += choice["text"]
                events += 1
                if events == leave_after:
                    return "left"
                if pause:
                    await asyncio.sleep(pause)
        self.wrong.append(f"no end: {body}")
        return "cut"

    async def slow(self, dice: random.Random) -> str:
        return await self.stream(dice, pause=dice.uniform(0.05, 0.2))

    async def leave(self, dice: random.Random) -> str:
        return await self.stream(dice, leave_after=dice.randint(1, 20))

    async def oversized(self, _dice: random.Random) -> str:
        content = b"x" * (LARGEST_BODY + 1)
        try:
            found = await self.client.post(f"{self.url}/v1/completions", content=content)
        except httpx.HTTPError:
            return "closed"  # it has answered before all was sent
        return str(found.status_code)

    async def malformed(self, dice: random.Random) -> str:
        content = dice.choice((b"{", b"[]", b"\xff", b'{"model": "m"}', b'{"prompt": 5}'))
        found = await self.client.post(f"{self.url}/v1/completions", content=content)
        return str(found.status_code)

    def compare(self, body: dict[str, Any], expected: list[str], found: list[str]) -> str:
        if found != expected:
            self.wrong.append(json.dumps({"body": body, "expected": expected, "found": found}))
            return "wrong"
        return "right"

    async def watch_health(self) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            while time.monotonic() < self.end:
                started = time.perf_counter()
                (await client.get(f"{self.url}/health")).raise_for_status()
                self.health.append(time.perf_counter() - started)
                await asyncio.sleep(0.1)

    async def watch_resources(self) -> None:
        while time.monotonic() < self.end:
            await self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def sample(self) -> None:
        found = {"seconds": round(time.monotonic() - self.begin, 1)}
        server = psutil.Process(self.pid)
        children = server.children()
        (engine,) = [each for each in children if "alula.server.engine_process" in each.cmdline()]
        for name, process in (("http", server), ("engine", engine)):
            found[f"{name}_mb"] = round(process.memory_info().rss / 2**20, 1)
            found[f"{name}_files"] = process.num_fds()
        self.samples.append(found | {"free_pages": await self.free_pages()})

    async def free_pages(self) -> float:
        return (await self.metrics())['alula_cache_pages{state="free"}']

    async def metrics(self) -> dict[str, float]:
        text = (await self.client.get(f"{self.url}/metrics")).text
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in lines}

    async def quiet(self) -> None:
        """Until the engine has nothing left to do."""
        for _ in range(200):
            found = await self.metrics()
            self.left = {
                name: found[name]
                for name in ("alula_running", "alula_waiting", 'alula_cache_pages{state="in_use"}')
            }
            if not any(self.left.values()):
                break
            await asyncio.sleep(0.1)
        await self.sample()

    def report(self) -> dict[str, Any]:
        ordered = sorted(self.health)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        early, late = self.first_minute(), self.samples[-1]
        grown = [
            name
            for name in ("http", "engine")
            if late[f"{name}_mb"] > MOST_GROWTH * early[f"{name}_mb"]
            or late[f"{name}_files"] > early[f"{name}_files"]
        ]
        return {
            "seconds": self.seconds,
            "streams": self.streams,
            "outcomes": dict(sorted(self.outcomes.items())),
            "wrong": self.wrong[:5],
            "health_p99_seconds": round(p99, 4),
            "health_worst_seconds": round(ordered[-1], 4),
            "early": early,
            "late": late,
            "samples": self.samples,
            "left": self.left,
            "passed": not self.wrong
            and not grown
            and not any(self.left.values())
            and p99 < SLOW_HEALTH_SECONDS,
        }

    def first_minute(self) -> dict[str, float]:
        """The last sample of it; of a short run, of its first third."""
        until = min(60.0, self.seconds / 3)
        return [each for each in self.samples if each["seconds"] <= until][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", default="model")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--most-tokens", type=int, default=60)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load = Load(
        given.url.rstrip("/"),
        given.model,
        given.pid,
        given.seconds,
        given.streams,
        given.most_tokens,
    )
    found = asyncio.run(load.run())
    print(json.dumps({name: part for name, part in found.items() if name != "samples"}, indent=2))
    if given.out:
        command = " ".join(psutil.Process(given.pid).cmdline()[1:])
        settings = {"streams": str(given.streams), "most_tokens": str(given.most_tokens)}
        settings |= {"server": command.partition(" serve ")[2], "note": given.note}
        results.write(given.out, results.record("serve load", settings, found, _PACKAGES))
    sys.exit(not found["passed"])


if __name__ == "__main__":
    main()
