"""What the command line looks like from outside: help, errors, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from alula import __version__
from alula.cli import main
from alula.cli.session import opening
from running import Alula, Process


def lines_of_error(err: str) -> list[str]:
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "  why", "  fix"], err
    return lines


@pytest.mark.parametrize("arguments", [["--help"], [], ["bench"], ["generate", "-h"]])
def test_help_needs_no_torch(arguments: list[str], process: Process) -> None:
    command, env = process
    code = (
        "import sys; from alula.cli.main import run\n"
        f"assert run({arguments!r}) == 0\n"
        "assert 'torch' not in sys.modules, 'help has imported torch'"
    )
    done = subprocess.run([*command[:2], code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: alula" in done.stdout


def test_version(alula: Alula) -> None:
    assert alula("--version") == (0, f"alula {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["generate", "--no-such-option"], "No such option: --no-such-option"),
        (["generate", "--max-tokens", "many"], "--max-tokens"),
        (["generate"], "no prompt was given"),
        (["generate", "--prompt", "a", "--prompts", "b"], "both --prompt and --prompts"),
        (["generate", "--prompt", " "], "is empty"),
        (["generate", "--prompt", "a", "--temperature", "-1"], "temperature"),
        (["generate", "--prompt", "a", "--top-p", "0"], "--top-p cannot be"),
        (["generate", "--prompt", "a", "--max-tokens", "0"], "--max-tokens cannot be"),
        (["generate", "--prompt", "a", "--logprobs", "1"], "--logprobs needs --json"),
        (["generate", "--prompt", "a", "--cache-tokens", "-1"], "--cache-tokens cannot be"),
        (
            ["generate", "--prompt", "a", "--max-sequences", "1000000000"],
            "--max-sequences cannot be",
        ),
        (["serve", "--port", "99999"], "there is no port 99999"),
        (["stack", "apply", "no-such-file"], "there is no lock no-such-file"),
        (["generate", "--prompt", "a", "--n", "1000000000"], "n cannot be 1000000000"),
        (["generate", "--prompt", "a", "--stop", "\udcff"], "stop"),
        (["bench", "decode", "--kinds", "poems"], "poems"),
        (["bench", "decode", "--kinds", "chat,"], "chat,"),
        (["bench", "decode", "--repeats", "0"], "repeats"),
        (["bench", "decode", "--threads", "0"], "threads"),
        (["bench", "decode", "--prompts-per-kind", "0"], "0 prompts"),
    ],
)
def test_usage_errors_take_three_lines_and_exit_2(
    arguments: list[str], said: str, alula: Alula
) -> None:
    code, out, err = alula(*arguments)
    assert (code, out) == (2, "")
    assert said in lines_of_error(err)[0]


def test_model_errors_exit_5(alula: Alula, tmp_path: Path) -> None:
    code, _, err = alula("generate", tmp_path, "--prompt", "a")
    assert code == 5
    assert str(tmp_path) in lines_of_error(err)[0]


def test_machine_errors_exit_6_before_the_model_is_opened(alula: Alula, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "result.json"
    code, _, err = alula("bench", "decode", "no-such-model", "--out", out)
    assert code == 6
    assert "cannot write" in lines_of_error(err)[0]


@pytest.mark.parametrize("wrong", ["--no-such-option", "--seed=-1"])
def test_with_json_the_error_is_also_an_object_on_standard_output(wrong: str, alula: Alula) -> None:
    code, out, err = alula("generate", "--prompt", "a", "--json", wrong)
    lines = lines_of_error(err)
    error = json.loads(out)["error"]
    assert error["exit_code"] == code == 2
    assert lines == [f"error: {error['what']}", f"  why: {error['why']}", f"  fix: {error['fix']}"]


def test_a_failure_of_alula_itself_shows_its_traceback_with_debug_alone(
    alula: Alula, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("alula.cli.generate.read", fail)
    code, _, err = alula("generate", "--prompt", "a")
    assert code == 1
    assert "RuntimeError: a bug" in lines_of_error(err)[1]
    code, _, err = alula("--debug", "generate", "--prompt", "a")
    assert code == 1
    assert "Traceback" in err and "fail" in err


def test_ctrl_c_exits_130_and_says_nothing(alula: Alula, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("alula.cli.generate.read", interrupt)
    assert alula("generate", "--prompt", "a") == (130, "", "")


def test_a_reader_that_leaves_ends_it_quietly(process: Process) -> None:
    command, env = process
    alula = subprocess.Popen(
        [*command, "--version"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert alula.stdout is not None
    assert alula.stderr is not None
    alula.stdout.close()
    with alula.stderr:
        assert alula.stderr.read() == b""
    assert alula.wait() == main._BROKEN_PIPE


@pytest.mark.parametrize("arguments", [["--version"], ["generate", "--prompt", "a", "--json"]])
@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
def test_an_answer_that_cannot_be_written_is_an_error(
    to: str, arguments: list[str], process: Process, tiny_model: Path
) -> None:
    command, env = process
    where = [*arguments[:1], str(tiny_model), *arguments[1:]] if arguments[1:] else arguments
    shell = ["sh", "-c", f'"$@" {to}', "sh", *command, *where]
    done = subprocess.run(shell, env=env, capture_output=True, text=True)
    assert done.returncode == 6
    lines_of_error(done.stderr)


def test_a_closed_standard_input_is_an_empty_one(process: Process) -> None:
    command, env = process
    shell = ["sh", "-c", '"$@" <&-', "sh", *command, "generate", "--prompt", "-"]
    done = subprocess.run(shell, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "standard input is empty" in lines_of_error(done.stderr)[0]


def test_remarks_may_have_nowhere_to_go(process: Process) -> None:
    command, env = process
    shell = ["sh", "-c", '"$@" 2>&-', "sh", *command, "nonsense"]
    assert subprocess.run(shell, env=env).returncode == 2


def test_ctrl_c_while_torch_is_imported_is_heard_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), opening("a model"):
        with suppress(KeyboardInterrupt):  # as an import does
            signal.raise_signal(signal.SIGINT)
        imported = True
    assert imported
