"""A checkout, environments and wheels with one local change of each kind."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

LINES = [f"line {n}" for n in range(1, 31)]


def text(**changed: str) -> str:
    """Thirty lines, some of them changed: line_3="other"."""
    lines = list(LINES)
    for name, line in changed.items():
        lines[int(name.removeprefix("line_")) - 1] = line
    return "\n".join(lines) + "\n"


def git(folder: Path, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
    who |= {"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"}
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **who, **quiet},
    )
    return done.stdout.strip()


def write(folder: Path, files: Mapping[str, str | None]) -> None:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def commit(folder: Path, message: str, files: Mapping[str, str | None]) -> str:
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def package(folder: Path, where: str = "python/engine") -> Path:
    """A repository with release v1.0, and v2.0 on a branch beside it."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    first = {f"{where}/{name}.py": text() for name in ("clean", "clash", "taken", "gone", "dirty")}
    commit(folder, "release 1.0", {**first, f"{where}/__init__.py": "", ".gitignore": "*.log\n"})
    git(folder, "tag", "v1.0")
    commit(
        folder,
        "release 2.0",
        {
            f"{where}/clash.py": text(line_5="theirs"),
            f"{where}/taken.py": text(line_5="wanted by all"),
            f"{where}/gone.py": None,
            f"{where}/clean.py": text(line_25="theirs"),
        },
    )
    git(folder, "tag", "v2.0")
    git(folder, "checkout", "-q", "-b", "mine", "v1.0")
    return folder


def with_changes(folder: Path, where: str = "python/engine") -> dict[str, str]:
    """A commit of each kind on top of v1.0, edits that are not committed, and new files."""
    commits = {
        "clean": commit(folder, "faster there", {f"{where}/clean.py": text(line_5="mine")}),
        "taken": commit(folder, "a fix", {f"{where}/taken.py": text(line_5="wanted by all")}),
        "clash": commit(folder, "my way", {f"{where}/clash.py": text(line_5="mine")}),
        "gone": commit(folder, "a tweak", {f"{where}/gone.py": text(line_9="mine")}),
    }
    write(folder, {f"{where}/dirty.py": text(line_1="not committed")})
    write(folder, {f"{where}/new.py": "new\n", "noise.log": "ignored\n"})
    return commits


def install(
    prefix: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    python: str = "3.12",
    tag: str = "py3-none-any",
    origin: object = None,
) -> Path:
    """A package with a RECORD that holds hashes; its site-packages."""
    site = prefix / f"lib/python{python}/site-packages"
    site.mkdir(parents=True, exist_ok=True)
    settings = prefix / "pyvenv.cfg"
    if not settings.exists():
        settings.write_text(f"home = /usr/bin\nversion = {python}.4\n")
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    content: dict[str, bytes] = {
        path: data.encode() if isinstance(data, str) else data for path, data in files.items()
    }
    content[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n".encode()
    )
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nTag: {tag}\n".encode()
    if origin is not None:
        content[f"{info}/direct_url.json"] = json.dumps(origin).encode()
    rows = []
    for path, data in content.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    (site / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return site


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)


def editable(folder: Path) -> dict[str, object]:
    return {"url": folder.as_uri(), "dir_info": {"editable": True}}


def fingerprint(*folders: Path) -> dict[str, str]:
    """Every file below some folders, git's own included: its content, mode and time."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            state = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            digest = hashlib.sha256(content).hexdigest()
            found[str(path)] = f"{digest} {state.st_mode:o} {state.st_mtime_ns}"
    return found
