"""From the name a person types to a model on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from alula.errors import ModelError
from alula.models.builtin import BUILT_IN, fetch
from alula.models.hub import download
from alula.models.progress import Progress, silent

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_NAMES = (
    "a model is a folder in Hugging Face layout, a .gguf file, a Hugging Face repository "
    f"(organisation/name) or one of: {', '.join(BUILT_IN)}"
)


@dataclass(frozen=True)
class LocalModel:
    """A model that lies on this machine."""

    kind: Literal["folder", "gguf"]
    path: Path
    name: str
    sha256: str | None = None
    """Of a GGUF file's content, where it is known without reading it."""


def resolve(name: str, progress: Progress = silent) -> LocalModel:
    """Find, or fetch, the model that `name` stands for.

    A built-in name goes first, then what exists on disk, then the Hugging Face hub. Raises
    ModelError for a name that stands for nothing, MachineError where it cannot be fetched.
    """
    if name in BUILT_IN:
        return LocalModel("gguf", fetch(name, progress), name, BUILT_IN[name].sha256)
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path, name)
    if path.is_file():
        return _file(path, name)
    if name.endswith(".gguf") or not _REPOSITORY.fullmatch(name) or name.startswith("."):
        raise ModelError(f"there is no model {name!r}", "no such file, folder or name", _NAMES)
    return LocalModel("folder", download(name), name)


def _folder(path: Path, name: str) -> LocalModel:
    if (path / "config.json").is_file():
        return LocalModel("folder", path, name)
    found = sorted(file.name for file in path.glob("*.gguf"))
    raise ModelError(
        f"the folder {path} holds no model",
        "it has no config.json",
        f"name the file itself: {path / found[0]}" if found else _NAMES,
    )


def _file(path: Path, name: str) -> LocalModel:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(
            f"cannot read {path}", error.strerror or str(error), "check its permissions"
        ) from error
    if magic != b"GGUF":
        raise ModelError(
            f"{path} is not a GGUF file",
            f"it begins with {magic!r} instead of b'GGUF'",
            "for safetensors name the folder they lie in; else download the file again",
        )
    return LocalModel("gguf", path, name)
