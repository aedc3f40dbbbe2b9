"""`alula stack` from outside: environments that are built, used and left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from alula.stack.build import name_of
from alula.stack.lock import Lock
from alula.stack.places import Places
from made_wheels import hashes, lock_of, make_wheel, pretend, wheel_of
from running import Alula, Process

_LATE = """
import sys, feather
print(feather.VERSION, flush=True)
sys.stdin.readline()
import feather.late
print(feather.late.VERSION, sys.prefix, flush=True)
"""


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "home"))
    return Places(tmp_path / "home/stack")


def _lock(folder: Path, version: str) -> tuple[Path, str]:
    """A lock file of one package, and the name of its environment."""
    modules = ("feather/__init__.py", "feather/late.py")
    files = dict.fromkeys(modules, f"VERSION = {version!r}\n".encode())
    lock = lock_of(make_wheel(folder / version, version=version, files=files))
    path = folder / f"{version}.json"
    lock.write(path)
    return path, name_of(lock)


def _json(alula: Alula, *arguments: str | Path) -> dict[str, Any]:
    done = alula("stack", *arguments, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_an_upgrade_and_the_way_back(alula: Alula, places: Places, tmp_path: Path) -> None:
    (one, old), (two, new) = (_lock(tmp_path, version) for version in ("1.0", "2.0"))
    assert alula("stack", "list").out == "current is none; 0 environments\n"
    first = alula("stack", "apply", one, "--python", sys.executable).out.splitlines()[0]
    assert first.startswith(f"{old} is built: 1 package, Python 3.")
    assert _json(alula, "apply", two, "--python", sys.executable)["built"]
    assert "was built already" in alula("stack", "apply", two).out
    first = alula("stack", "switch", old).out.splitlines()[0]
    assert first == f"current is {old}; it was never probed"
    moved = {"current": new, "before": old, "changed": True, "probed": None}
    assert _json(alula, "switch", new) == moved
    assert f"a rollback leads to {old}" in alula("stack", "list").out.splitlines()[0]
    assert alula("stack", "rollback").out.startswith(f"current is {old}, was {new}; ")
    told = _json(alula, "log")["entries"]
    assert [each["action"] for each in told] == [
        *("apply", "ready", "apply", "ready", "switch", "switch", "rollback")
    ]
    assert _json(alula, "prune", "--keep", "0")["removed"] == [new]
    listed = _json(alula, "list")
    assert [each["name"] for each in listed["environments"]] == [old]
    assert listed["environments"][0]["packages"] == {"feather": "1.0"}
    assert alula("stack", "log", "--last", "1").out.splitlines()[1].split()[2:4] == ["prune", new]


def test_a_process_imports_late_from_its_own_environment(
    alula: Alula, process: Process, places: Places, tmp_path: Path
) -> None:
    (one, old), (two, new) = (_lock(tmp_path, version) for version in ("1.0", "2.0"))
    for path in (one, two):
        assert alula("stack", "apply", path, "--python", sys.executable).code == 0
    alula("stack", "switch", old)
    command, environ = process
    environ = environ | {"ALULA_HOME": str(places.root.parent)}
    call = [*command, "stack", "run", "--", "python", "-c", _LATE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(call, env=environ, text=True, **pipes) as running:  # type: ignore[call-overload]
        assert running.stdout.readline() == "1.0\n"
        assert alula("stack", "switch", new).code == 0
        assert alula("stack", "switch", new, "--json").code == 0
        users = {each["name"]: each["processes"] for each in _json(alula, "list")["environments"]}
        assert users == {old: [running.pid], new: []}
        running.stdin.write("\n")
        running.stdin.flush()
        assert running.stdout.readline() == f"1.0 {places.environment(old)}\n"
    said = subprocess.run(call, env=environ, input="\n", capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[1] == f"2.0 {places.environment(new)}"


def test_the_command_of_run_owns_its_output_and_its_code(process: Process, places: Places) -> None:
    pretend(places, "a")
    command, environ = process
    environ = environ | {"ALULA_HOME": str(places.root.parent)}
    code = "import os, sys; print(os.environ['VIRTUAL_ENV']); sys.exit(7)"
    call = [*command, "stack", "run", "--env", "a", "--", "python", "-c", code]
    done = subprocess.run(call, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, f"{places.environment('a')}\n")


def test_run_without_a_command_shows_the_variables(alula: Alula, places: Places) -> None:
    pretend(places, "a")
    shown = alula("stack", "run", "--env", "a").out.splitlines()
    assert shown[0].startswith("# a: ")
    script = "\n".join([*shown, 'echo "$TRITON_CACHE_DIR"'])
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    found = _json(alula, "run", "--env", "a")["set"]
    assert said.stdout.strip() == found["TRITON_CACHE_DIR"]
    assert alula("stack", "run", "--env", "a", "--json", "--", "true").code == 2
    assert alula("stack", "run", "--env", "a", "--", "no-such-command").code == 2


def test_adopting_changes_nothing(alula: Alula, places: Places, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    before = hashes(folder)
    assert "it is the current environment" in alula("stack", "adopt", folder).out.splitlines()[0]
    lock, new = _lock(tmp_path, "1.0")
    assert alula("stack", "apply", lock, "--python", folder / "bin/python").code == 0
    assert alula("stack", "switch", new).code == 0
    assert alula("stack", "prune", "--keep", "0").code == 0
    assert _json(alula, "rollback")["current"] == "venv"
    assert hashes(folder) == before


def test_refusals_say_why_and_have_their_code(alula: Alula, tmp_path: Path) -> None:
    path, name = _lock(tmp_path, "1.0")
    lock = Lock.read(path)
    wheel = wheel_of(make_wheel(tmp_path, unrecorded={"x": b""}))
    lock.model_copy(update={"packages": (wheel,)}).write(path)
    done = alula("stack", "apply", path, "--python", sys.executable, "--json")
    assert done.code == 8
    assert "does not list x" in json.loads(done.out)["error"]["why"]
    parts = [line.split(":")[0].strip() for line in done.err.splitlines()]
    assert parts[-3:] == ["error", "why", "fix"]
    assert alula("stack", "switch", name).code == 2
    (tmp_path / "no.json").write_text("{}")
    assert alula("stack", "apply", tmp_path / "no.json").code == 2
    assert alula("stack", "log", "--last", "0").code == 2


def _killed_while_building(
    process: Process, places: Places, tmp_path: Path, kills: int
) -> list[str]:
    """Kill a build at random moments; the states it left."""
    pretend(places, "old")
    command, environ = process
    environ = environ | {"ALULA_HOME": str(places.root.parent)}
    subprocess.run([*command, "stack", "switch", "old"], env=environ, check=True)
    before = hashes(places.environment("old"))
    chance = random.Random(7)
    left = []
    for number in range(kills):
        path, name = _lock(tmp_path, f"1.{number}")
        call = [*command, "stack", "apply", str(path), "--python", sys.executable]
        with subprocess.Popen(call, env=environ, start_new_session=True) as child:
            while not places.record(name).exists():
                time.sleep(0.001)
            time.sleep(chance.uniform(0.0, 0.4))
            # Alone, so that uv goes on for a moment, or with all that it has started.
            (os.kill if number % 2 else os.killpg)(child.pid, signal.SIGKILL)
        left.append(json.loads(places.record(name).read_text())["state"])
        assert places.current.resolve() == places.environment("old")
        assert hashes(places.environment("old")) == before
        subprocess.run(call, env=environ, check=True)
        code = f"import feather.late; assert feather.late.VERSION == '1.{number}'"
        run = [*command, "stack", "run", "--env", name, "--", "python", "-c", code]
        subprocess.run(run, env=environ, check=True, stderr=subprocess.DEVNULL)
    return left


def test_a_build_killed_at_any_moment_is_completed_by_the_next(
    process: Process, places: Places, tmp_path: Path
) -> None:
    assert "building" in _killed_while_building(process, places, tmp_path, 2)


@pytest.mark.slow
def test_twenty_five_builds_killed(process: Process, places: Places, tmp_path: Path) -> None:
    left = _killed_while_building(process, places, tmp_path, 25)
    assert left.count("building") > 12
