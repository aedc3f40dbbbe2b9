"""What the server adds to the engine: throughput at many streams, and the time to the first byte.

    python benchmarks/serve_overhead.py --model smollm2 --out benchmarks/results/serve_overhead.json

The engine alone runs in this process, the server in its own two; both do the same requests in
turns, so that a machine whose speed wanders is fair to both. The client shares the machine, and on
one that others use too, processor time says more than the clock does.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from alula import LLM, SamplingParams
from alula.bench import results
from alula.bench.serve import Load, Target, ask, run
from alula.bench.workloads import Workload, select

_PACKAGES = ("alula", "torch", "fastapi", "uvicorn", "pyzmq", "msgspec")


@contextmanager
def served(model: str, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-c", "from alula.cli.main import main; main()", "serve", model]
    with subprocess.Popen(
        [*command, "--port", "0", "--name", "model", *options], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"serving model at (http://\S+)", line):
                    # What it logs has to go somewhere.
                    subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
                    yield found[1], psutil.Process(process.pid)
                    break
        finally:
            process.terminate()


def messages(workload: Workload) -> list[dict[str, str]]:
    return [{"role": "user", "content": workload.prompt}]


def throughput(
    llm: LLM, target: Target, http: psutil.Process, streams: int, repeats: int
) -> dict[str, Any]:
    (engine_process,) = http.children()
    workloads = select()[:streams]
    params = SamplingParams(temperature=0.0, max_tokens=target.max_tokens)

    def engine() -> int:
        found = llm.chat([messages(workload) for workload in workloads], params)
        return sum(len(output.outputs[0].token_ids) for output in found)

    def server() -> int:
        answers = run(target, Load(streams, None), workloads, streams)
        assert not [answer.error for answer in answers if answer.error]
        return sum(answer.tokens for answer in answers)

    clocks = {
        "clock": time.perf_counter,
        "engine alone": time.process_time,
        "server's engine": lambda: processor_seconds(engine_process),
        "server's http": lambda: processor_seconds(http),
    }
    found = in_turns({"engine": engine, "server": server}, clocks, repeats)
    alone = median(found["engine"]["engine alone"])
    clock = {job: median(times["clock"]) for job, times in found.items()}
    return {
        "seconds_per_token": found,
        "lost_by_the_clock": 1 - clock["engine"] / clock["server"],
        "lost_by_processor_time": median(found["server"]["server's engine"]) / alone - 1,
        "http_processor_share": median(found["server"]["server's http"]) / alone,
    }


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def in_turns(
    jobs: dict[str, Callable[[], int]], clocks: dict[str, Callable[[], float]], repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds a token by job and clock; the first round warms up and fills the prefix caches."""
    found: dict[str, dict[str, list[float]]] = {job: {c: [] for c in clocks} for job in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items() if repeat % 2 else reversed(jobs.items()):
            started = {clock: read() for clock, read in clocks.items()}
            tokens = job()
            if repeat:
                for clock, read in clocks.items():
                    found[name][clock].append((read() - started[clock]) / tokens)
    return found


def first_bytes(llm: LLM, target: Target, repeats: int) -> dict[str, Any]:
    """Of a prompt whose beginning is cached, in seconds."""
    workload = select(["rewriting"])[0]
    one = Target(target.url, target.model, max_tokens=2)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    engine, server = [], []
    for repeat in range(repeats + 1):
        (output,) = llm.chat(messages(workload), params)
        answered = ask(one, workload)
        if repeat:
            engine.append(output.first_token_seconds)
            server.append(answered.first_seconds)
    return {
        "engine_seconds": median(engine),
        "server_seconds": median(server),
        "added_milliseconds": 1e3 * (median(server) - median(engine)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = {"max_sequences": given.streams, "max_length": 1024}
    llm = LLM(given.model, speculation="off", **sizes)
    options = ["--speculation", "off", "--max-length", "1024"]
    with served(given.model, *options, "--max-sequences", str(given.streams)) as (url, http):
        target = Target(url, "model", max_tokens=given.max_tokens)
        found = {
            "first_byte_of_a_cached_prompt": first_bytes(llm, target, 3 * given.repeats),
            "throughput": throughput(llm, target, http, given.streams, given.repeats),
        }
    settings = {name: str(value) for name, value in vars(given).items() if name != "out"}
    record = results.record("serve overhead", settings, found, _PACKAGES)
    if given.out:
        results.write(given.out, record)
    print(record["results"])


if __name__ == "__main__":
    main()
