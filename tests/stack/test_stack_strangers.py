"""`alula stack` in the hands of somebody who gives it the wrong things, or interrupts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from alula.cli.main import run
from alula.errors import MachineError
from alula.models.home import whole_file
from alula.stack.places import Places
from made_wheels import PYTHON, lock_of, make_wheel, pretend, wheel_of

Call = Callable[..., tuple[int, Any]]
_ALULA = (sys.executable, "-c", "from alula.cli.main import main; main()")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "home"))
    return Places(tmp_path / "home/stack")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def told(*arguments: str | Path) -> tuple[int, Any]:
        code = run(["stack", *map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return told


def _fields(tmp_path: Path) -> dict[str, Any]:
    lock = lock_of(make_wheel(tmp_path / "w"))
    found: dict[str, Any] = json.loads(lock.to_bytes())
    return found


@pytest.mark.parametrize(
    ("field", "value", "code", "said"),
    [
        ("url", "https://me:hunter2@example.org/feather-1.0-py3-none-any.whl", 2, "credentials"),
        ("url", "ssh://example.org/feather-1.0-py3-none-any.whl", 2, "'ssh'"),
        ("url", "https://[example.org/feather.whl", 2, "url"),
        ("url", "https://föder.example/ä b.whl", 8, "is none"),
        ("url", "https://a..b/feather-1.0-py3-none-any.whl", 8, "is none"),
        ("url", "file:///a%00b.whl", 8, "is none"),
        ("size", "much", 2, "size"),
        ("size", -1, 2, "size"),
        ("sha256", "0" * 63, 2, "sha256"),
        ("sha256", "0" * 64, 8, "sha256"),
        ("filename", "../feather-1.0-py3-none-any.whl", 2, "file name"),
        ("name", "quill", 8, "quill"),
        ("version", "1.0 --index-url x", 8, "1.0"),
        ("colour", "red", 2, "colour"),
    ],
)
def test_a_lock_edited_by_hand(
    call: Call, tmp_path: Path, field: str, value: object, code: int, said: str
) -> None:
    fields = _fields(tmp_path)
    fields["packages"][0][field] = value
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(fields))
    found, answer = call("apply", path, "--python", sys.executable)
    assert found == answer["error"]["exit_code"] == code, answer
    assert said in answer["error"]["what"] + answer["error"]["why"]
    assert "hunter2" not in json.dumps(answer)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"format": 2}', b"[" * 100_000])
def test_a_file_that_is_no_lock(call: Call, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock.json"
    path.write_bytes(content)
    for arguments in (["apply", path], ["patches", "--lock", path, "--snapshot", tmp_path / "s"]):
        code, answer = call(*arguments)
        assert (code, answer["error"]["what"]) == (2, f"{path} is not a lock")


def test_a_file_of_two_packages(call: Call, places: Places, tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path / "w", name, files={"shared.py": name.encode()}) for name in ("a", "b")
    ]
    path = tmp_path / "lock.json"
    lock_of(*wheels).write(path)
    code, answer = call("apply", path, "--python", sys.executable, "--name", "x")
    assert code == 8
    assert "shared.py" in answer["error"]["what"] + answer["error"]["why"]
    assert [(e["name"], e["state"]) for e in call("list")[1]["environments"]] == [("x", "broken")]
    code, answer = call("switch", "x")
    assert (code, "shared.py" in answer["error"]["why"]) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list"], 0),
        (["log"], 0),
        (["prune", "--keep", "1"], 0),
        (["rollback"], 2),
        (["switch", "nobody"], 2),
        (["switch", "../x"], 2),
        (["run"], 2),
        (["run", "--env", "nobody"], 2),
        (["adopt", "/no/such/folder"], 2),
        (["adopt", "/no/such/folder", "--name", "current"], 2),
        (["prune", "--keep", "-1"], 2),
        (["apply", "/no/such/lock"], 2),
        (["apply"], 2),
        (["plan"], 2),
        (["plan", "--env", "nobody", "--want", "a"], 2),
        (["plan", "--want", "a b c"], 2),
        (["plan", "--want", "a", "--index=x=http://127.0.0.1:1/simple/"], 6),
        (["plan", "--want", "a", "--index=x=/no/such/folder"], 2),
        (["plan", "--want", "a", "--index=x=file:///no/such/folder"], 6),
        (["plan", "--want", "a", "--timeout", "0"], 2),
        (["plan", "--want", "a", "--timeout", "nan"], 2),
        (["plan", "--want", "a", "--out", "/dev/null/x"], 6),
        (["patches", "nobody"], 2),
        (["patches", "--wheels", "/no/such/folder"], 2),
        (["patches", "--upstream", "a=/no/such/folder"], 2),
        (["patches", "--snapshot", "/dev/null/x"], 6),
        (["patches", "--target", "nobody"], 2),
        (["probe", "nobody"], 2),
        (["probe", "--baseline", "nobody"], 2),
    ],
)
def test_every_answer_of_an_empty_store_is_json(
    call: Call, arguments: list[str], code: int
) -> None:
    found, answer = call(*arguments)
    assert found == code, answer
    assert ("error" in answer) == (code != 0)


def test_what_stands_behind_dashes_is_not_alulas(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(places, "a")
    assert run(["stack", "run", "--env", "a", "--", "no-such-command", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_a_store_that_can_only_be_read(
    call: Call, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(places, "a")
    pretend(places, "b")
    assert call("switch", "a")[0] == 0
    assert call("run")[0] == 0  # its lock is there from now on
    opened = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_RDWR and places.root in Path(path).parents:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", refusing)
    assert call("list")[1]["current"] == "a"
    assert call("run")[1]["environment"] == "a"
    places.guard.unlink()
    code, answer = call("switch", "b")
    assert (code, answer["error"]["why"]) == (6, "Permission denied")
    code, told = call("probe", "b")
    assert (code, "verdict" in told) == (0, True), "what was found is told, though it is not kept"


def test_a_damaged_record_stands_in_nobody_elses_way(call: Call, places: Places) -> None:
    pretend(places, "a")
    places.record("broken").write_text("{")
    for name in ("a", str(places.environment("a"))):
        assert call("patches", name, "--to", "x==1")[0] == 0
    code, answer = call("patches", "broken")
    assert (code, answer["error"]["what"]) == (6, "the record of broken cannot be read")
    places.record("broken").unlink()
    places.current.mkdir()
    assert call("list")[1]["error"]["why"] == "it is a file or a folder"


def test_a_record_that_cannot_be_written() -> None:
    with (
        pytest.raises(MachineError, match="cannot be written"),
        whole_file(Path("/dev/null/x"), 1, ""),
    ):
        pass


@pytest.fixture
def silent_index() -> Iterator[socket.socket]:
    """One that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_ctrl_c_is_not_kept_waiting_by_an_index(
    places: Places, silent_index: socket.socket, command: str, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{silent_index.getsockname()[1]}"
    wheel = make_wheel(tmp_path / "w")
    lock_of(wheel_of(wheel, f"{address}/{wheel.name}")).write(tmp_path / "lock.json")
    arguments = {
        "plan": ["--want", "feather", f"--index=general={address}/simple/", "--python", PYTHON],
        "apply": [str(tmp_path / "lock.json"), "--python", sys.executable, "--name", "x"],
    }
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    call = [*_ALULA, "stack", command, *arguments[command]]
    with subprocess.Popen(
        call, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        connection, _ = silent_index.accept()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=10)
        connection.close()
    assert (child.returncode, out) == (130, "")
    assert "Traceback" not in err
    if command == "apply":
        assert json.loads(places.record("x").read_text())["state"] == "building"


@pytest.mark.parametrize("same", [True, False])
def test_two_that_build_one_name_at_once(places: Places, tmp_path: Path, same: bool) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    children = []
    for number in (1, 2):
        version = "1.0" if same else f"{number}.0"
        path = tmp_path / f"{number}.json"
        lock_of(make_wheel(tmp_path / version, version=version)).write(path)
        call = [*_ALULA, "stack", "apply", str(path), "--python", sys.executable]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        call += ["--name", "x", "--json"]
        children.append(subprocess.Popen(call, env=environ, text=True, **pipes))  # type: ignore[call-overload]
    answers = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    if same:
        assert [child.returncode for child in children] == [0, 0]
        assert sorted(answer["built"] for answer in answers) == [False, True]
    else:
        assert sorted(child.returncode for child in children) == [0, 2]
        refused = next(answer for answer in answers if "error" in answer)
        assert refused["error"]["what"] == "the name x is taken"
    assert json.loads(places.record("x").read_text())["state"] == "ready"
