"""From an environment that somebody edited to the upgraded one, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alula.cli.main import run
from alula.stack.places import Places
from local_changes import install, text, write
from loopback_index import Made, Site
from made_wheels import PYTHON, hashes, make_wheel

_TUNED, _CORE = "feather/tuned.py", "feather/core.py"
_SAYS = "SPEED = 1\n"
_ALULA = (sys.executable, "-c", "from alula.cli.main import main; main()")
_SHOW = "import feather, feather.tuned; print(feather.VERSION, feather.tuned.SPEED)"

Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "home"))
    return Places(tmp_path / "home/stack")


@pytest.fixture
def call(places: Places, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `alula stack … --json`: the exit code, and what was said."""

    def told(*arguments: str | Path) -> tuple[int, Any]:
        code = run(["stack", *map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return told


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """Of an environment with feather 1.0, of which one file was edited."""
    folder = tmp_path / "old"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    files = {
        "feather/__init__.py": "VERSION = '1.0'\n",
        _TUNED: _SAYS,
        _CORE: text(),
    }
    site = install(folder, "feather", "1.0", files, python=PYTHON)
    write(site, {_TUNED: "SPEED = 9\n"})
    return site


@pytest.fixture
def lock(tmp_path: Path, site: Site, places: Places) -> Path:
    """Where a plan is written that wants feather 2.0, which needs quill."""
    files = {
        "feather/__init__.py": b"VERSION = '2.0'\n",
        _TUNED: _SAYS.encode(),
        _CORE: text(line_5="theirs").encode(),
    }
    made = [
        make_wheel(tmp_path / "w", version="2.0", files=files, requires=["quill>=1"]),
        make_wheel(tmp_path / "w", "quill", "1.5"),
    ]
    site.put_json("/simple/", [Made(path.name, path.read_bytes()) for path in made])
    return tmp_path / "plan"


def _plan(call: Call, site: Site, out: Path) -> tuple[int, Any]:
    index = f"--index=general={site.url}/simple/"
    return call("plan", "--want", "feather==2.0", index, "--python", PYTHON, "--out", out)


def _environ(places: Places) -> dict[str, str]:
    own = {"ALULA_HOME": str(places.root.parent), "PYTHONPATH": os.pathsep.join(sys.path)}
    return os.environ | own


def _shown(places: Places) -> str:
    """What a process in the current environment imports."""
    command = [*_ALULA, "stack", "run", "--", "python", "-c", _SHOW]
    environ = _environ(places)
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_adopt_plan_apply_probe_switch_run_rollback(
    call: Call, places: Places, site_packages: Path, site: Site, lock: Path, tmp_path: Path
) -> None:
    assert call("adopt", tmp_path / "old")[1]["current"]
    before = hashes(tmp_path / "old")
    code, plan = _plan(call, site, lock)
    assert code == 0, plan
    assert [each["name"] for each in plan["lock"]["packages"]] == ["feather", "quill"]
    lock /= "stack.lock.json"
    code, ahead = call("patches", "baseline", "--lock", lock, "--wheels", tmp_path / "w")
    assert [each["standing"] for each in ahead["changes"]] == ["applied"]
    code, built = call("apply", lock, "--python", sys.executable)
    assert code == 0, built
    name = built["environment"]
    assert [(e["id"], e["standing"]) for e in built["changes"]] == [
        (f"feather:{_TUNED}", "applied")
    ]
    assert call("switch", name)[1]["probed"] is None
    assert call("rollback")[1]["current"] == "old"
    code, probed = call("probe", name, "--baseline", "baseline")
    assert code == 0, probed
    assert probed["stages"]["files"] == "passed"
    moved = call("switch", name)[1]
    assert (moved["before"], moved["probed"]["result"]) == ("old", "not run")
    assert _shown(places) == "2.0 9"
    assert call("patches", "current")[1]["verdict"].startswith("1 local change: 1 only in")
    assert call("rollback")[1] | {"probed": None} == {
        **{"current": "old", "before": name, "changed": True, "probed": None}
    }
    assert _shown(places) == "1.0 9"
    assert hashes(tmp_path / "old") == before
    actions = [each["action"] for each in call("log")[1]["entries"]]
    assert actions == [
        *("adopt", "switch", "apply", "ready", "switch", "rollback", "probe"),
        *("switch", "rollback"),
    ]


def test_a_conflict_stops_the_build_until_it_is_decided(
    call: Call, places: Places, site_packages: Path, site: Site, lock: Path, tmp_path: Path
) -> None:
    write(site_packages, {_CORE: text(line_5="mine")})
    call("adopt", tmp_path / "old")
    _plan(call, site, lock)
    wheels = tmp_path / "originals"
    make_wheel(wheels, version="1.0", files={_CORE: text().encode()})
    apply = ["apply", lock / "stack.lock.json", "--python", sys.executable, "--wheels", wheels]
    code, said = call(*apply)
    assert (code, said["error"]["exit_code"]) == (1, 1)
    change = f"feather:{_CORE}"
    assert f"conflict: {change}: feather 2.0 changed the same lines" in said["error"]["why"]
    assert f"--drop '{change}'" in said["error"]["fix"]
    (stopped,) = [e for e in call("list")[1]["environments"] if e["name"] != "old"]
    name = stopped["name"]
    assert stopped["state"] == "stopped"
    standings = {each["id"]: each["standing"] for each in stopped["changes"]}
    assert standings == {change: "conflict", f"feather:{_TUNED}": "applied"}
    for command in (["switch", name], ["run", "--env", name]):
        code, said = call(*command)
        assert (code, said["error"]["what"]) == (2, f"the environment {name} is not ready")
    assert call("patches", "current", "--target", name, "--wheels", wheels)[0] == 1
    assert call(*apply)[0] == 1
    by_hand = places.environment(name) / f"lib/python{PYTHON}/site-packages" / _CORE
    by_hand.write_text(text(line_5="ours"))
    code, built = call(*apply, "--drop", change)
    assert code == 0, built
    assert by_hand.read_text() == text(line_5="ours"), "what was decided by hand stays"
    assert {each["id"]: each["standing"] for each in built["changes"]} == {
        change: "drop",
        f"feather:{_TUNED}": "applied",
    }
    assert call(*apply, "--drop", change)[1]["built"] is False
    code, said = call(*apply, "--drop", f"feather:{_TUNED}")
    assert (code, said["error"]["why"]) == (2, f"feather:{_TUNED} is in it")
    assert call("switch", name)[1]["current"] == name


def test_ended_while_changes_are_made(
    call: Call,
    site_packages: Path,
    site: Site,
    lock: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    call("adopt", tmp_path / "old")
    _plan(call, site, lock)
    apply = ["apply", lock / "stack.lock.json", "--python", sys.executable]
    with monkeypatch.context() as patch:
        patch.setattr("alula.stack.changes.reapply", interrupted)
        assert run(["stack", *map(str, apply)]) == 130
    (left,) = [e for e in call("list")[1]["environments"] if e["name"] != "old"]
    assert (left["state"], left["changes"]) == ("stopped", [])
    assert "goes on" in call("switch", left["name"])[1]["error"]["why"]
    assert [each["standing"] for each in call(*apply)[1]["changes"]] == ["applied"]
    assert call("switch", left["name"])[1]["changed"]


def test_what_is_on_no_index_is_known_from_the_plan_on(
    call: Call, site_packages: Path, site: Site, lock: Path, tmp_path: Path
) -> None:
    files = {"homemade.py": "OURS = True\n"}
    install(tmp_path / "old", "homemade", "0.1", files, python=PYTHON, origin={"url": "file:///x"})
    call("adopt", tmp_path / "old")
    plan = _plan(call, site, lock)[1]
    assert plan["lock"]["not_offered"] == ["homemade"]
    assert any("homemade was built on this machine" in each for each in plan["lost"])
    lock /= "stack.lock.json"
    told = {each["id"]: each for each in call("patches", "current", "--lock", lock)[1]["changes"]}
    assert told["wheel:homemade"]["reason"] == "it holds no machine code"
    built = call("apply", lock, "--python", sys.executable)[1]
    there = Path(built["path"]) / f"lib/python{PYTHON}/site-packages/homemade.py"
    assert there.read_text() == files["homemade.py"]


def test_a_baseline_that_has_vanished(
    call: Call, site_packages: Path, site: Site, lock: Path, tmp_path: Path
) -> None:
    call("adopt", tmp_path / "old")
    assert _plan(call, site, lock)[0] == 0
    (tmp_path / "old").rename(tmp_path / "elsewhere")
    assert _plan(call, site, lock)[1]["error"]["what"] == "the environment old is gone"
    apply = ["apply", lock / "stack.lock.json", "--python", sys.executable]
    code, said = call(*apply)
    assert (code, said["error"]["what"]) == (2, "the environment old is gone")
    assert "--without-changes" in said["error"]["fix"]
    assert call(*apply, "--drop", "x", "--without-changes")[0] == 2
    assert call(*apply, "--without-changes")[1]["changes"] == []


def test_variables_are_handed_on_and_not_shown(
    call: Call, places: Places, site_packages: Path, site: Site, lock: Path, tmp_path: Path
) -> None:
    call("adopt", tmp_path / "old")
    _plan(call, site, lock)
    saved = tmp_path / "saved"
    call("patches", "current", "--env", "FLAVOUR=secret7", "--snapshot", saved, "--to", "a==1")
    apply = ["apply", lock / "stack.lock.json", "--python", sys.executable, "--snapshot", saved]
    code, built = call(*apply)
    assert code == 0, built
    name = built["environment"]
    assert places.record(name).stat().st_mode & 0o077 == 0
    told = [call("run", "--env", name)[1], call("list")[1]]
    assert told[0]["handed_on"] == ["FLAVOUR"]
    assert "secret7" not in json.dumps(told)
    command = [*_ALULA, "stack", "run", "--env", name, "--"]
    environ = _environ(places)
    for own, expected in (({}, "secret7"), ({"FLAVOUR": "mine"}, "mine")):
        done = subprocess.run(
            [*command, "printenv", "FLAVOUR"],
            env=environ | own,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


@pytest.mark.parametrize("word", ["nobody", "current", "baseline"])
@pytest.mark.parametrize("command", ["patches", "probe"])
def test_a_name_that_stands_for_nothing(call: Call, command: str, word: str) -> None:
    code, said = call(command, word)
    assert (code, word in said["error"]["what"]) == (2, True)
