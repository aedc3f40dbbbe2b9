"""Changes that are kept, rebuilt or dropped: files of no package, local builds, settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from alula.machine.environment import Environment, read_text
from alula.machine.library import read_library
from alula.machine.linkage import Linker, SystemLibraries
from alula.stack.patches_records import Change, Judged, Standing
from alula.stack.recorded import hash_of

_CUDA_LIBRARY = re.compile(r"lib(?:cu|nv|nccl)[\w]*\.so")
_PYTHON_TAG = re.compile(r"\.cpython-(\d)(\d+)")


def judge_stray(change: Change, folder: Path, old: Path, there: Environment | None) -> Judged:
    """A file in site-packages that no package owns."""
    if change.compiled:
        reason = f"{change.compiled[0]} was compiled for the old environment"
        return Judged(change, Standing.REBUILD, reason)
    saved = folder / change.saved
    if there is not None and not change.what.endswith(")"):
        path = there.sites[0] / change.files[0]
        if path.is_file() and hash_of(path) == hash_of(saved):
            return Judged(change, Standing.UPSTREAM, "the target has the same file")
        if path.is_file():
            reason = "the target has another file of that name"
            return Judged(change, Standing.CONFLICT, reason, change.files)
    if change.files[0].endswith(".pth") and len(change.files) == 1:
        return _path_file(change, saved, old)
    return Judged(change, Standing.KEEP, "no package brings it: it is copied as it is")


def _path_file(change: Change, saved: Path, old: Path) -> Judged:
    """A `.pth`: folders for Python to search, or code that runs at every start."""
    lines = [line.strip() for line in read_text(saved).splitlines() if line.strip()]
    if inside := next((line for line in lines if str(old) in line), None):
        reason = f"it would load from the old environment: {inside}"
        return Judged(change, Standing.CONFLICT, reason, change.files)
    folders = [line for line in lines if not line.startswith(("import ", "import\t", "#"))]
    if len(folders) == len(lines) and not any(Path(each).exists() for each in folders):
        return Judged(change, Standing.OBSOLETE, f"{', '.join(folders) or 'it'} leads nowhere")
    runs = len(folders) < len(lines)
    what = "code in it runs at every start of Python" if runs else f"it adds {', '.join(folders)}"
    return Judged(change, Standing.KEEP, f"{what}; it is copied as it is")


def judge_built(
    change: Change,
    there: Environment | None,
    version: str,
    offered: bool | None,
) -> Judged:
    """A package that was built here."""
    installed = there.find(change.package) if there else None
    if installed is not None and installed.version == change.version:
        reason = f"the target has {change.package} {installed.version}"
        return Judged(change, Standing.UPSTREAM, reason)
    if version and offered:
        reason = f"the target has {change.package} {version} from an index instead"
        return Judged(change, Standing.DROP, reason)
    unasked = "" if offered is False else "; no index was asked for it"
    if not change.compiled:
        return Judged(change, Standing.KEEP, f"it holds no machine code{unasked}")
    if there is None:
        reason = f"{len(change.compiled)} of its files were compiled for the old environment"
        return Judged(change, Standing.REBUILD, f"{reason}{unasked}")
    lacking = _lacking(change, there)
    if lacking:
        return Judged(change, Standing.REBUILD, f"{lacking}{unasked}")
    return Judged(change, Standing.KEEP, f"the target offers all that it links against{unasked}")


def _lacking(change: Change, there: Environment) -> str:
    """What a compiled package would not find in the target, "" where it finds all."""
    site = Path(change.where).parent
    paths = [site / file for file in change.compiled]
    for path in paths:
        made_for = _PYTHON_TAG.search(path.name)
        if (
            made_for
            and there.python
            and not there.python.startswith(f"{made_for[1]}.{made_for[2]}")
        ):
            return f"{path.name} is of Python {made_for[1]}.{made_for[2]}, not {there.python}"
    # As if they lay in the target: a library looks for others beside itself.
    new = there.sites[0]
    libraries = [replace(read_library(p), path=str(new / p.relative_to(site))) for p in paths]
    asked = frozenset(name for library in libraries for name in library.needed)
    linker = Linker(there, SystemLibraries(prefix=there.library_folder()), asked)
    own = {path.name for path in paths} | {library.soname for library in libraries}
    for library in libraries:
        missing, name = linker.missing(library), Path(library.path).name
        if missing.torch_symbols:
            torch = there.find("torch")
            has = f"torch {torch.version}" if torch else "the target"
            return f"{name} needs {missing.torch_symbols[0]}, which {has} lacks"
        if sonames := [each for each in missing.sonames if each not in own]:
            return f"{name} needs {sonames[0]}, which the target lacks"
    return ""


def judge_variable(change: Change, value: str, old: Path) -> Judged:
    """An environment variable."""
    if known := next((each for each in _known() if each["name"] == change.what), None):
        return Judged(change, Standing.DROP, known["reason"])
    if change.what == "LD_LIBRARY_PATH":
        for entry in filter(None, value.split(":")):
            found = [path.name for path in Path(entry).glob("lib*.so*")]
            if name := next((each for each in found if _CUDA_LIBRARY.match(each)), None):
                reason = f"{entry} holds {name}, which would come before the packages' own"
                return Judged(change, Standing.DROP, reason)
    if str(old) in value:
        return Judged(change, Standing.CONFLICT, f"it names the old environment: {old}")
    return Judged(change, Standing.KEEP, "nothing in it is of the old environment")


@cache
def _known() -> list[dict[str, Any]]:
    text = files("alula.stack").joinpath("variables.toml").read_text("utf-8")
    variables: list[dict[str, Any]] = tomllib.loads(text)["variable"]
    return variables


def judge_script(change: Change, folder: Path, old: Path) -> Judged:
    """A launch script: it stays where it is, so it only matters what it names."""
    lines = read_text(folder / change.saved).splitlines()
    for number, line in enumerate(lines, start=1):
        if str(old) in line:
            reason = f"line {number} names the old environment: {line.strip()[:120]}"
            return Judged(change, Standing.CONFLICT, reason, change.files)
    return Judged(change, Standing.KEEP, "nothing in it is of the old environment")
