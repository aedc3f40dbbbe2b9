"""A plan as files: requirements with addresses and hashes, a project for uv, the lock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from alula.stack.indexes import Index
from alula.stack.lock import Lock

REQUIREMENTS, PROJECT, LOCK = "requirements.txt", "pyproject.toml", "stack.lock.json"


def emit(lock: Lock, indexes: Iterable[Index], folder: Path) -> tuple[Path, ...]:
    """Write all three into a folder; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    lock.write(folder / LOCK)
    (folder / REQUIREMENTS).write_text(requirements(lock), "utf-8")
    project = folder / "uv" / PROJECT
    project.parent.mkdir(exist_ok=True)
    project.write_text(uv_project(lock, indexes), "utf-8")
    return folder / LOCK, folder / REQUIREMENTS, project


def requirements(lock: Lock) -> str:
    """For `pip install --no-deps --require-hashes -r`: immune to the order of indexes."""
    lines = [
        "# Install with --no-deps: the set is whole, and an override would be refused.",
        *(
            f"{wheel.name} @ {_quoted(wheel.url)} --hash=sha256:{wheel.sha256}"
            for wheel in lock.packages
        ),
    ]
    return "\n".join(lines) + "\n"


def uv_project(lock: Lock, indexes: Iterable[Index]) -> str:
    """A project in which each package is bound to the index that it comes from."""
    used = {wheel.index for wheel in lock.packages}
    found = [index for index in indexes if index.name in used]
    general = [index for index in found if not index.cuda and not index.packages]
    bound = {index.name for index in found} - {index.name for index in general}
    lines = ["[project]", 'name = "stack"', 'version = "0"']
    lines += [f'requires-python = "=={lock.python}.*"', "dependencies = ["]
    lines += [f'    "{wheel.name}=={wheel.version}",' for wheel in lock.packages]
    lines += ["]", "", "[tool.uv]", "package = false", "no-build = true"]
    lines += [
        f"environments = [\"sys_platform == 'linux' and platform_machine == '{_machine(lock)}'\"]"
    ]
    overrides = [f'    "{override.requirement}",' for override in lock.overrides]
    if overrides:
        reasons = [f"    # {override.reason}" for override in lock.overrides]
        lines += ["override-dependencies = [", *reasons, *overrides, "]"]
    for index in found:
        lines += ["", "[[tool.uv.index]]", f'name = "{index.name}"', f'url = "{index.url}"']
        lines += ["default = true"] if index in general[:1] else []
        lines += ["explicit = true"] if index.name in bound else []
    sources = [
        f'{wheel.name} = {{ index = "{wheel.index}" }}'
        for wheel in lock.packages
        if wheel.index in bound
    ]
    lines += ["", "[tool.uv.sources]", *sources] if sources else []
    return "\n".join(lines) + "\n"


def _machine(lock: Lock) -> str:
    return lock.tags.partition("_")[2].split("_", 2)[-1] if "manylinux" in lock.tags else "x86_64"


def _quoted(url: str) -> str:
    """Spaces and signs of an address escaped; what is escaped already stays."""
    return quote(url, safe=":/%+?=&~#,@!$'()*;[]")
