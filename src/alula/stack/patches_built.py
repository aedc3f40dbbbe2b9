"""Packages that were built on this machine, and their files put back into a wheel."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from alula.machine.environment import Distribution, Environment, canonical, read_text
from alula.models.progress import Progress, Task
from alula.stack.patches_records import Change, Kind

_MACHINE_CODE = (".so", ".pyd", ".dylib", ".a")
_LOCAL = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""What an installer adds; RECORD is written again by the next one."""
_OF_VARIANTS = re.compile(r"\+(?:cu\d+|cpu|rocm[\d.]+)$")
"""Labels of the indexes that PyTorch and others keep for each CUDA, where tags say less."""
_OF_INDEXES = ("manylinux", "musllinux", "any")
"""Platform tags that a public index takes; a plain linux_x86_64 is what a build here leaves."""


def built_here(
    environment: Environment, folder: Path, named: Sequence[str], watch: Progress
) -> Iterator[Change]:
    """Packages that no index is likely to have, and those that are named, each saved."""
    wanted = {canonical(name) for name in named}
    for key, owner in environment.distributions.items():
        why = "it was named" if key in wanted else why_built_here(owner)
        if why and not owner.is_editable:
            with watch(f"saving {key}", len(owner.files)) as task:
                saved = _as_wheel(owner, folder, task)
            yield Change(
                id=f"wheel:{key}",
                kind=Kind.BUILT,
                what=f"{key} {owner.version}",
                package=key,
                files=owner.files,
                where=str(owner.info),
                evidence=why,
                version=owner.version,
                compiled=compiled_of(owner.files),
                saved=saved,
            )


def why_built_here(owner: Distribution) -> str:
    """Why a package counts as built here, "" where nothing says so."""
    try:
        origin = json.loads(read_text(owner.info / "direct_url.json") or "{}")
        url = _without_user(str(origin.get("url", "")))
        vcs = origin.get("vcs_info")
    except (ValueError, AttributeError, RecursionError):
        return "its direct_url.json cannot be read"
    if isinstance(vcs, dict):
        return f"built from {url} at {str(vcs.get('commit_id', ''))[:12]}"
    if url.startswith("file:"):
        return f"installed from {url.removeprefix('file://')}"
    lines = read_text(owner.info / "WHEEL").splitlines()
    tags = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    public = any(name in tag.rpartition("-")[2] for tag in tags for name in _OF_INDEXES)
    if tags and not public and not url and not _OF_VARIANTS.search(owner.version):
        return f"its wheel is tagged {tags[0]}, as a build on a machine is"
    return ""


def _without_user(url: str) -> str:
    """A URL without a name or a key in it."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def _as_wheel(owner: Distribution, folder: Path, task: Task) -> str:
    """A package's files as the wheel that they came in; its path within the snapshot.

    Files that lie outside of site-packages, as scripts do, are made again at installation.
    """
    target = folder / "wheels" / wheel_name(owner)
    target.parent.mkdir(exist_ok=True)
    rows = []
    with zipfile.ZipFile(target, "w", strict_timestamps=False) as archive:
        for file, recorded in owner.record.items():
            path = owner.site / file
            if not file.startswith(("..", "/")) and path.is_file() and path.name not in _LOCAL:
                archive.write(path, file)
                rows.append((file, recorded, str(path.stat().st_size)))
            task.advance(1)
        record = f"{owner.info.name}/RECORD"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
        archive.writestr(record, text.getvalue())
    return target.relative_to(folder).as_posix()


def wheel_name(owner: Distribution) -> str:
    """The name of a package's wheel, by the tags in its WHEEL file."""
    lines = read_text(owner.info / "WHEEL").splitlines()
    tags = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    parts = [sorted({tag.split("-")[n] for tag in tags if tag.count("-") == 2}) for n in range(3)]
    tag = "-".join(".".join(part) for part in parts) if all(parts) else "py3-none-any"
    return f"{canonical(owner.name).replace('-', '_')}-{owner.version}-{tag}.whl"


def compiled_of(files: Sequence[str]) -> tuple[str, ...]:
    """Files of machine code among some files."""
    return tuple(file for file in files if file.endswith(_MACHINE_CODE) or ".so." in file)
