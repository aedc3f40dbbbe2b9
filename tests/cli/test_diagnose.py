"""`alula diagnose` from the command line: what it prints, its JSON and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from running import Alula, Process

CASE = Path(__file__).parents[2] / "docs/examples/six-attempts"
LOGS = CASE / "logs"
NAMED = {"class", "layer", "line", "file", "certainty", "refuted_by", "fix"}


def test_the_json_is_cause_cascade_and_notes(alula: Alula) -> None:
    log = LOGS / "torch-symm-mem.log"
    finished = alula("diagnose", log, "--report", CASE / "report.json", "--json")
    found = json.loads(finished.out)
    assert finished.code == 3
    assert list(found) == ["cause", "cascade", "notes"]
    assert found["cause"].keys() >= NAMED
    assert found["cause"]["class"] == "arch_gate"
    assert found["cause"]["layer"] == "allow-list"
    assert found["cause"]["certainty"] == "certain"
    assert found["cause"]["file"] == str(log)
    line = log.read_text("utf-8").splitlines()[found["cause"]["line"] - 1]
    assert line == found["cause"]["text"] == "KeyError: 12"
    gates = [(gate["layer"], gate["met"]) for gate in found["cause"]["gates_behind"]]
    assert gates == [("topology", "now")]


def test_the_gates_behind_a_cause_are_printed(alula: Alula) -> None:
    arguments = (LOGS / "flashinfer-fusion.log", "--report", CASE / "report.json")
    out = alula("diagnose", *arguments).out
    assert "behind it (after flashinfer-python 0.6.17): flashinfer-python, toolkit" in out
    assert "behind it (now): the kernel, measured" in out  # the log says how many ranks there are
    assert "behind it (from sglang 0.5.9 on): sglang, allow-list" in out


def test_a_healthy_log_gives_no_cause_and_exits_with_0(alula: Alula) -> None:
    finished = alula("diagnose", LOGS / "fewer-channels.log", "--json")
    assert finished.code == 0
    found = json.loads(finished.out)
    assert found["cause"] is None
    assert any("NCCL instead" in note["note"] for note in found["notes"])


def test_an_unknown_failure_exits_with_4_and_quotes_a_line(alula: Alula, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("server_args=ServerArgs(\nValueError: the moon is full\n")
    finished = alula("diagnose", log, "--exit-code", "1")
    assert finished.code == 4
    assert "ValueError: the moon is full" in finished.out
    assert f"{log}:2" in finished.out.replace("\n", "")


def test_a_signal_may_be_written_as_a_negative_number(alula: Alula, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("loading\n")
    assert alula("diagnose", log, "--exit-code", "-9").code == 3
    assert alula("diagnose", log, "--exit-code", "-15").code == 0


def test_control_characters_of_a_log_do_not_reach_the_terminal(
    alula: Alula, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(
        b"server_args=(\nRuntimeError: \x07\x1b]52;c;aGk=\x07 [red]x[/] \x9b2J\xe2\x80\xae\n"
    )
    out = alula("diagnose", log, "--exit-code", "1").out
    assert not set(out) & {"\x07", "\x1b", "\x9b", "\u202e"}
    assert "[red]x[/]" in out  # no markup either


def test_the_answer_to_six_attempts_comes_first(alula: Alula) -> None:
    arguments = ("--together", CASE / "attempts.toml", "--if", CASE / "plan.toml")
    finished = alula("diagnose", *arguments)
    assert finished.code == 3
    assert finished.out.splitlines()[0] == (
        "CUDA 13.0 as planned unblocks 0 of 6; a toolkit ≥ 12.9 is a precondition of one fix and "
        "the fix of none."
    )
    found = json.loads(alula("diagnose", *arguments, "--json").out)
    assert found["verdict"] == finished.out.splitlines()[0]
    assert found["toolkit"]["precondition_of"] == ["FlashInfer fusion"]
    behind = [len(attempt["cause"]["gates_behind"]) for attempt in found["attempts"]]
    assert behind == [1, 3, 2, 1, 1, 0]


def test_names_of_attempts_are_no_markup(alula: Alula, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts.toml"
    attempts.write_text('[[attempt]]\nname = "[bold]\\u001b[2J"\n')
    finished = alula("diagnose", "--together", attempts)
    assert finished.code == 0
    assert "[bold]\\x1b[2J" in finished.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "neither a log nor --together"),
        (("no-such.log",), "No such file"),
        (("--if", "plan.toml", "x.log"), "held against attempts"),
        (("--together", "attempts.toml", "x.log"), "names its own"),
        (("--together", "no-such.toml"), "No such file"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(
    arguments: tuple[str, ...], why: str, alula: Alula
) -> None:
    finished = alula("diagnose", *arguments, "--json")
    assert finished.code == 2
    error = json.loads(finished.out)["error"]
    assert why in error["why"]


def test_a_report_that_is_none_is_refused(alula: Alula, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("[]")
    finished = alula("diagnose", LOGS / "nccl-tree.log", "--report", report)
    assert finished.code == 2
    assert "alula doctor --json" in finished.err


def test_it_does_not_wait_for_torch(process: Process) -> None:
    command, environment = process
    script = (
        "import sys; from alula.cli.main import run; "
        f"code = run(['diagnose', {str(LOGS / 'nccl-tree.log')!r}, '--json']); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([command[0], "-c", script], env=environment, capture_output=True)
    assert done.returncode == 3


def private_log(folder: Path, words: str = "") -> Path:
    log = folder / "server.log"
    log.write_text(
        "[2026-02-11 10:00:00] server_args=ServerArgs(model_path='m')\n"
        "[2026-02-11 10:00:09] Scheduler hit an exception: Traceback (most recent call last):\n"
        f"StrangeError: /home/marlene/m with HF_TOKEN=s3cr3tvalue {words}\n",
        encoding="utf-8",
    )
    return log


@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]])
def test_every_form_leaves_out_names_and_keys_unless_full_is_asked(
    alula: Alula, tmp_path: Path, form: list[str]
) -> None:
    log = private_log(tmp_path)
    out = alula("diagnose", log, *form).out
    assert "marlene" not in out
    assert "s3cr3t" not in out
    full = alula("diagnose", log, "--full", *form).out
    assert "marlene" in full
    assert "s3cr3t" in full


def test_several_attempts_leave_out_names_and_keys(alula: Alula, tmp_path: Path) -> None:
    private_log(tmp_path)
    attempts = tmp_path / "attempts.toml"
    entries = [f'[[attempt]]\nname = "{name}"\nlog = "server.log"' for name in ("a", "b")]
    attempts.write_text("\n".join(entries), encoding="utf-8")
    for form in ([], ["--json"], ["--markdown"]):
        out = alula("diagnose", "--together", attempts, *form).out
        assert "marlene" not in out
        assert "s3cr3t" not in out
        assert "StrangeError" in out
    assert "marlene" in alula("diagnose", "--together", attempts, "--full").out


def test_markdown_quotes_a_line_that_cannot_leave_its_fence(alula: Alula, tmp_path: Path) -> None:
    log = private_log(tmp_path, "```` @everyone <img src=x>")
    lines = alula("diagnose", log, "--markdown").out.splitlines()
    quoted = next(number for number, line in enumerate(lines) if "StrangeError" in line)
    assert lines[quoted - 1] == "`````text"
    assert lines[quoted + 1] == "`````"
    assert "| sure | unknown |" in lines


def test_json_and_markdown_together_are_refused(alula: Alula, tmp_path: Path) -> None:
    finished = alula("diagnose", private_log(tmp_path), "--json", "--markdown")
    assert finished.code == 2
    assert "both --json and --markdown" in finished.err


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('feature = "nonsense"', "custom-allreduce"),
        ("tokens_per_second = nan", "no figure"),
        ("tokens_per_second = -5", "no figure"),
        ("tokens_per_second = 0", "no figure"),
        ("log = [1, 2]", "names no file"),
        ('log = ""', "names no file"),
    ],
)
def test_an_attempt_that_cannot_be_meant_is_refused(
    alula: Alula, tmp_path: Path, entry: str, said: str
) -> None:
    attempts = tmp_path / "attempts.toml"
    attempts.write_text(f'[[attempt]]\nname = "a"\n{entry}\n', encoding="utf-8")
    finished = alula("diagnose", "--together", attempts)
    assert finished.code == 2
    assert said in finished.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [('"cuda==13.0", "cuda==12.8"', "cuda twice"), ('"cuda==not_a.version"', "is no version")],
)
def test_a_plan_that_contradicts_itself_is_refused(
    alula: Alula, tmp_path: Path, changes: str, said: str
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f"changes = [{changes}]\n", encoding="utf-8")
    finished = alula("diagnose", "--together", CASE / "attempts.toml", "--if", plan)
    assert finished.code == 2
    assert said in finished.err


def test_an_empty_log_is_said_to_be_empty(alula: Alula, tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.touch()
    assert "empty.log is empty" in alula("diagnose", log).out


def test_a_status_of_0_beside_a_failure_is_noted(alula: Alula, tmp_path: Path) -> None:
    out = alula("diagnose", LOGS / "torch-symm-mem.log", "--exit-code", "0").out
    assert "exit status 0" in out


def test_a_dash_is_standard_input() -> None:
    log = (LOGS / "torch-symm-mem.log").read_bytes()
    code = "import sys; from alula.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "diagnose", "-", "--json"]
    finished = subprocess.run(command, input=log, capture_output=True, check=False)
    assert finished.returncode == 3
    assert json.loads(finished.stdout)["cause"]["text"] == "KeyError: 12"
