"""`alula bench serve` against a real server and against none."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from alula.bench.serve import Answered, Load, Objectives, Target, run
from alula.bench.serve_report import percentiles, summarise
from alula.bench.workloads import select
from serving import ServerProcess


def alula(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from alula.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_closed_and_open_loops_are_measured(server: ServerProcess, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    options = ("--requests", "6", "--max-tokens", "8", "--out", str(out), "--json")
    finished = alula("bench", "serve", server.url, "--concurrency", "1,3", *options)
    assert finished.returncode == 0, finished.stderr
    record = json.loads(finished.stdout)
    assert record == json.loads(out.read_text())
    for found, load in zip(record["results"], ("1 at a time", "3 at a time"), strict=True):
        assert (found["load"], found["requests"], found["failed"]) == (load, 6, 0)
        assert found["tokens"] == 48
        assert len(found["by_kind"]) == 6
        times = found["first_seconds"]
        assert 0 < times["p50"] <= times["p90"] <= times["p99"]


def test_what_was_found_is_on_standard_output_alone(server: ServerProcess) -> None:
    """Verdict and table belong together; a short run has no progress to tell in a pipe."""
    options = ("--requests", "2", "--max-tokens", "4", "--concurrency", "1", "--kinds", "chat")
    finished = alula("bench", "serve", server.url, *options)
    assert finished.stderr == ""
    first, *rest = finished.stdout.splitlines()
    assert first.startswith("1 at a time: ")
    assert any(line.startswith("  first token: p50 ") for line in rest)
    assert any(line.startswith("  chat: ") for line in rest)


def test_progress_counts_every_request(server: ServerProcess) -> None:
    told: list[tuple[str, int]] = []

    class Counting:
        def advance(self, amount: int, /) -> None:
            told.append(("done", amount))

    def progress(description: str, total: int, /) -> AbstractContextManager[Counting]:
        told.append((description, total))
        return nullcontext(Counting())

    target = Target(server.url, "model", max_tokens=2)
    for load, words in ((Load(2, None), "2 at a time"), (Load(None, 50.0), "50 a second")):
        told.clear()
        run(target, load, select(["chat"]), 3, progress)
        assert told == [(f"measuring, {words}", 3), *[("done", 1)] * 3]


def test_an_open_loop_does_not_wait_for_answers(server: ServerProcess) -> None:
    target = Target(server.url, "model", max_tokens=4)
    found = run(target, Load(None, 50.0), select(["chat"]), 8)
    assert [answer.error for answer in found] == [None] * 8
    starts = sorted(answer.started for answer in found)
    assert starts[-1] < min(answer.ended for answer in found) + 1.0
    assert starts != [starts[0]] * 8


def test_failures_are_told_and_fail_the_command(server: ServerProcess) -> None:
    found = run(Target(server.url, "other"), Load(2, None), select(["chat"]), 2)
    summary = summarise(found, Objectives())
    assert (summary["failed"], summary["tokens"]) == (2, 0)
    assert "404" in summary["errors"][0]
    assert alula("bench", "serve", "http://127.0.0.1:9").returncode == 6
    assert alula("bench", "serve", "127.0.0.1").returncode == 2
    assert alula("bench", "serve", server.url, "--concurrency", "0").returncode == 2


def test_goodput_counts_what_keeps_both_objectives() -> None:
    quick = Answered("chat", 0.0, [0.5, 0.6], tokens=2, ended=1.0)
    late = Answered("chat", 0.0, [1.5, 1.6], tokens=2, ended=1.6)
    jerky = Answered("chat", 0.0, [0.5, 1.5], tokens=2, ended=1.6)
    failed = Answered("chat", 0.0, error="500", ended=2.0)
    summary = summarise([quick, late, jerky, failed], Objectives(1.0, 0.2))
    assert summary["goodput_per_second"] == 1 / 2.0
    assert summary["requests_per_second"] == 3 / 2.0


def test_percentiles_are_measured_values() -> None:
    assert percentiles(range(1, 101)) == {"p50": 51, "p90": 91, "p99": 100}
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}
