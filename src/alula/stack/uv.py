"""uv, where it makes environments: always offline, from local files, and never building anything.

What a person has set for uv, and the environment they are in, must not change what is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from alula.errors import AlulaError, MachineError
from alula.stack.lock import Wheel

_FOREIGN = ("UV_", "PYTHON", "VIRTUAL_ENV", "CONDA", "PIP_")
_ALWAYS = ("--no-config", "--offline", "--no-python-downloads", "--no-progress", "--color=never")
_NO_ROOM = ("No space left on device", "os error 28", "Disk quota exceeded")
_SHOWN = 600


def find_python(version: str) -> Path:
    """An interpreter of this version that the machine has; MachineError where it has none."""
    try:
        found = _run(["python", "find", "--system", version])
    except AlulaError as error:
        raise MachineError(
            f"there is no Python {version} on this machine",
            error.why,
            f"install it beside the others, or name one: alula stack apply --python PATH/python"
            f"{version}",
        ) from error
    return Path(found.strip())


def make_environment(folder: Path, python: Path, cache: Path, held: int) -> None:
    """An empty virtual environment; `held` is a lock's descriptor that uv keeps while it runs."""
    _run(["venv", "--python", str(python), str(folder)], cache, held)


def install(folder: Path, wheel: Wheel, file: Path, cache: Path, held: int) -> None:
    """Put one wheel into an environment, unpacked anew: its files are shared with nobody.

    The link is to a cache that is removed afterwards, so that nothing is written twice.
    """
    options = ["--no-deps", "--no-index", "--no-build", "--link-mode", "hardlink"]
    target = ["--python", str(folder / "bin/python"), "--find-links", str(file.parent)]
    try:
        _run(["pip", "install", *options, *target, f"{wheel.name}=={wheel.version}"], cache, held)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _run(arguments: Sequence[str], cache: Path | None = None, held: int | None = None) -> str:
    kept = ["--no-cache"] if cache is None else ["--cache-dir", str(cache)]
    done = subprocess.run(
        [find_uv(), *arguments, *_ALWAYS, *kept],
        env=_environ(os.environ),
        pass_fds=() if held is None else (held,),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise _failure(arguments, done.stderr)
    return done.stdout


def find_uv() -> str:
    """Its program; MachineError where it is not installed."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise MachineError(
            "uv is not installed",
            "it finds the versions of a plan, and makes environments",
            "pip install 'alula[stack]'",
        ) from error


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}


def _failure(arguments: Sequence[str], said: str) -> AlulaError:
    why = " ".join(said.split())[-_SHOWN:] or "it said nothing"
    if any(text in said for text in _NO_ROOM):
        return MachineError(
            "the disk became full",
            why,
            "free some space and run the same command again; what was downloaded is kept",
        )
    return MachineError(
        f"uv {arguments[0]} failed", why, "run the same command again, or look at what it names"
    )
