"""What `alula stack patches` and `alula stack probe` print, and the codes that they end with."""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from alula.cli.stack_patches import patches
from alula.cli.stack_probe import probe
from alula.errors import UsageError
from local_changes import commit, editable, install, package, text, write

app = typer.Typer()
app.command("patches")(patches)
app.command("probe")(probe)


def call(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    checkout = package(tmp_path / "engine")
    commit(checkout, "my way", {"python/engine/clash.py": text(line_5="mine")})
    commit(checkout, "faster there", {"python/engine/clean.py": text(line_5="mine")})
    install(tmp_path / "env", "engine", "1.0", {}, origin=editable(checkout / "python"))
    return tmp_path


def test_the_verdict_comes_first_and_a_conflict_ends_with_1(changed: Path) -> None:
    arguments = ["patches", changed / "env", "--snapshot", changed / "s", "--to", "engine==2.0"]
    code, said = call(*arguments)
    assert code == 1
    assert said.splitlines()[0] == (
        "2 local changes: 1 conflict, 1 applied; 1 to be decided before an upgrade"
    )
    assert "conflict in python/engine/clash.py" in said
    code, said = call(*arguments, "--json")
    answer = json.loads(said)
    assert [each["standing"] for each in answer["changes"]] == ["conflict", "applied"]
    dropped = answer["changes"][0]["id"]
    code, said = call(*arguments, "--drop", dropped)
    assert code == 0
    assert said.startswith("2 local changes: 1 drop, 1 applied\n")


def test_no_change_is_said_so(tmp_path: Path) -> None:
    install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"})
    code, said = call("patches", tmp_path / "env", "--snapshot", tmp_path / "s")
    assert (code, said.splitlines()[0]) == (0, "no local change was found")


def test_keys_in_variables_are_not_printed(changed: Path) -> None:
    key = "hf_abcdefghijklmnopqrstuvwx"
    arguments = [
        "patches",
        changed / "env",
        "--snapshot",
        changed / "s",
        "--env",
        f"HF_TOKEN={key}",
    ]
    for form in ([], ["--json"]):
        _, said = call(*arguments, *form)
        assert "HF_TOKEN" in said
        assert key not in said
    assert (changed / "s/snapshot.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "engine=2.0"], "--to was given"),
        (["--env", "NO_SUCH_VARIABLE_HERE"], "has no value"),
        (["--drop", "nothing:1"], "no change 'nothing:1'"),
        (["--script", "/no/such/script"], "no script"),
        (["--built", "torch"], "torch is not installed"),
        (["--checkout", "engine=/no/such/folder"], "no checkout of engine"),
    ],
)
def test_what_is_refused(changed: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call("patches", changed / "env", "--snapshot", changed / "s", *arguments)


def test_a_probe_of_an_environment_without_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = install(tmp_path / "env", "one", "1.0", {"one.py": "x\n"}, python=version)
    code, said = call("probe", tmp_path / "env")
    assert code == 0
    assert said.startswith("nothing failed, but not all was run: checks ")
    assert "one token\n  not run all of it: torch is not installed" in said
    write(site, {"one.py": "edited\n"})
    code, said = call("probe", tmp_path / "env", "--json")
    answer = json.loads(said)
    assert code == 1
    assert answer["verdict"].startswith("the environment does not hold")
    assert answer["stages"]["files"] == "failed"


def test_limits_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are no limits"):
        call("probe", tmp_path, "--noise", "2")
