"""`alula estimate` as a person meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from running import Alula, Process

CASE = Path(__file__).parents[2] / "docs/examples/claims-pcie8.toml"
MACHINE = ("--machine", "8x-rtx-pro-6000")


def test_the_first_line_is_the_verdict(alula: Alula) -> None:
    done = alula("estimate", "kimi-k2.5", *MACHINE)
    assert done.code == 0
    first = done.out.splitlines()[0]
    assert first.startswith("kimi-k2.5 on 8 × RTX PRO 6000 Blackwell: 89.5 tok/s plain")
    assert "chain:3 pays from τ 1.79" in first
    assert "2.05 to 3.22" in first


@pytest.mark.parametrize(
    ("tau", "said"), [("2.48", "chain:3 pays: it needs τ 1.79"), ("1.5", "chain:3 does not pay")]
)
def test_a_known_tau_decides(alula: Alula, tau: str, said: str) -> None:
    assert said in alula("estimate", "kimi-k2.5", *MACHINE, "--tau", tau).out.splitlines()[0]


def test_a_model_too_large_is_said_to_be(alula: Alula) -> None:
    done = alula("estimate", "deepseek-v3", "--machine", "8x-rtx-5090")
    assert "it does not fit" in done.out.splitlines()[0]


def test_json_holds_everything_and_nothing_else(alula: Alula) -> None:
    done = alula("estimate", "kimi-k2.5", *MACHINE, "--acceptance", "0.6,0.5,0.4", "--json")
    data = json.loads(done.out)
    assert data["exchanges"] == [{"kind": "all-reduce", "count": 122, "bytes_per_row": 14_336}]
    step, whole = data["plain"], data["round"]
    assert whole["break_even"] == pytest.approx(whole["total_ms"] / step["total_ms"])
    parts = ("memory_ms", "launch_ms", "exchange_ms", "measured_ms", "fixed_ms")
    assert step["total_ms"] == pytest.approx(sum(step[part] for part in parts))
    assert data["tau"] == pytest.approx(1 + 0.6 + 0.3 + 0.12)


def test_the_verdict_says_what_was_changed_and_what_is_taken_at_its_best(alula: Alula) -> None:
    def first(*arguments: str) -> str:
        return alula("estimate", *arguments).out.splitlines()[0]

    alone = first("llama-3.1-8b", "--machine", "rtx-5090")
    assert alone.endswith("Best case: no host time in a round.")
    linked = first("llama-3.3-70b", "--machine", "8x-l40s", "--host", "2ms")
    assert linked.endswith("Best case: all-reduces at the least of PCIe Gen4 x16.")
    known = first("kimi-k2.5", *MACHINE, "--layout", "ep", "--attention", "fp8", "--host", "1ms")
    assert "Blackwell, layout ep, attention in fp8, host 1ms:" in known
    assert "Best case" not in known


def test_json_says_what_was_asked(alula: Alula) -> None:
    done = alula("estimate", "kimi-k2.5", *MACHINE, "--layout", "ep", "--json")
    data = json.loads(done.out)
    assert data["layout"] == {
        "attention": "sharded",
        "experts": "expert",
        "combine": "all-reduce",
    }
    assert data["formats"]["experts"] == "int4-g32"
    assert (data["changes"], data["best_case"]) == (["layout ep"], [])


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_name_and_no_figure_is_cut_off(
    alula: Alula, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("alula.cli.documents._PIPED_WIDTH", width)
    shown = alula("estimate", "kimi-k2.5", *MACHINE).out
    assert "…" not in shown
    for depth in (1, 2, 3, 4, 5, 7, 10, 15):
        assert re.search(rf"^chain:{depth} ", shown, re.MULTILINE)
    assert "attention replicated in int4-g32 " in shown


def test_markdown_page_and_chart(alula: Alula, tmp_path: Path) -> None:
    page, chart = tmp_path / "it.html", tmp_path / "it.svg"
    done = alula(
        "estimate", "qwen3-8b", "--machine", "1x-h100", "--markdown", "--html", page, "--svg", chart
    )
    assert done.out.startswith("**qwen3-8b on 1 × H100 SXM:")
    assert page.read_text().startswith("<!doctype html>")
    assert chart.read_text().startswith("<svg")


def test_the_case(alula: Alula) -> None:
    done = alula("estimate", "--check", CASE)
    assert done.code == 0
    assert "The claims exclude each other" in done.out.splitlines()[0]
    text = " ".join(done.out.split())
    for figure in ("at most 64 µs", "at most 3 rows", "16 rows", "74 tok/s", "180 tok/s", "1.79"):
        assert figure in text


def _told() -> list[tuple[str, str]]:
    """Commands of the documentation and the verdicts quoted below them."""
    text = (Path(__file__).parents[2] / "docs/estimate.md").read_text("utf-8")
    found = re.findall(r"\n    alula (estimate .*)\n\n((?:> .*\n)+)", text)
    return [(command, " ".join(quote.replace("> ", "").split())) for command, quote in found]


@pytest.mark.parametrize(("command", "verdict"), _told())
def test_the_documentation_quotes_what_is_printed(
    alula: Alula, monkeypatch: pytest.MonkeyPatch, command: str, verdict: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert alula(*command.split()).out.splitlines()[0] == verdict


def test_the_documentation_quotes_every_question() -> None:
    assert len(_told()) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("kimi-k9", *MACHINE), 5, "kimi-k2.5"),
        (("kimi-k2.5", "--machine", "8x-rtx-9090"), 2, "rtx-pro-6000"),
        ((), 2, "MODEL|model"),
        (("smollm2", *MACHINE), 2, "--tp 1 or 3"),
        (("kimi-k2.5", *MACHINE, "--tp", "16"), 2, "--tp 8"),
        (("llama-3.1-8b", *MACHINE, "--layout", "ep"), 2, "--layout tp"),
        (("kimi-k2.5", *MACHINE, "--allreduce", "60"), 2, "no unit"),
        (("kimi-k2.5", *MACHINE, "--allreduce", "60GB"), 2, "60us"),
        (("qwen3-8b", "--machine", "1x-h100", "--allreduce", "60us"), 2, "one GPU"),
        (("kimi-k2.5", *MACHINE, "--host", "4"), 2, "no unit"),
        (("kimi-k2.5", *MACHINE, "--rows", "0,1"), 2, "--rows"),
        (("kimi-k2.5", *MACHINE, "--draft", "chain"), 2, "chain:3"),
        (("kimi-k2.5", *MACHINE, "--tau", "2", "--acceptance", "0.5"), 2, "keep one"),
        (("kimi-k2.5", *MACHINE, "--weights", "int3"), 2, "int4-g32"),
        (("kimi-k2.5", *MACHINE, "--json", "--markdown"), 2, "keep one"),
        (("--check", "nowhere.toml"), 2, "nowhere.toml"),
        (("kimi-k2.5", "--check", str(CASE)), 2, "[setting]"),
        *[
            (("--check", str(CASE), *given), 2, f"--check and {given[0]} exclude")
            for given in (("--tp", "4"), ("--allreduce", "4us"), ("--rows", "3"), ("--tau", "2"))
        ],
        (("kimi-k2.5", *MACHINE, "--context", str(10**20)), 2, "--context"),
        (("kimi-k2.5", *MACHINE, "--batch", str(10**9)), 2, "--batch"),
        (("kimi-k2.5", *MACHINE, "--rows", str(10**9)), 2, "--rows"),
        (("kimi-k2.5", *MACHINE, "--tp", "5"), 2, "1 or 2 or 4 or 8"),
        (("kimi-k2.5", *MACHINE, "--tp", "1", "--layout", "ep"), 2, "--layout ep"),
        (("kimi-k2.5", *MACHINE, "--html", "x", "--svg", "x"), 2, "name two"),
    ],
)
def test_refusals_say_what_is_possible(
    alula: Alula, arguments: tuple[str, ...], code: int, named: str
) -> None:
    done = alula("estimate", *arguments)
    assert done.code == code
    assert any(name in done.err for name in named.split("|"))
    assert len(done.err.strip().splitlines()) == 3


def _in_ascii(process: Process, *arguments: str) -> str:
    command, environment = process
    environment = environment | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, check=True)
    return done.stdout.decode("ascii")


def test_units_survive_a_terminal_that_knows_only_ascii(process: Process) -> None:
    shown = _in_ascii(process, "estimate", "kimi-k2.5", *MACHINE)
    assert shown.startswith("kimi-k2.5 on 8 x RTX PRO 6000 Blackwell: 89.5 tok/s plain; chain:3")
    assert "pays from tau 1.79" in shown.splitlines()[0]
    assert " 27 us" in shown
    assert "?" not in shown


def test_json_loses_nothing_in_ascii(process: Process) -> None:
    data = json.loads(_in_ascii(process, "estimate", "kimi-k2.5", *MACHINE, "--json"))
    assert "8 × RTX PRO 6000" in data["verdict"]


def test_it_takes_less_than_a_second_without_torch(process: Process) -> None:
    """Of processor time, since a shared machine's clock runs on."""
    script = (
        "import sys, time; from alula.cli.main import run; "
        "code = run(['estimate', 'kimi-k2.5', '--machine', '8x-rtx-pro-6000']); "
        "assert 'torch' not in sys.modules; assert time.process_time() < 1; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=process[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
