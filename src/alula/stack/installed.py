"""Whether an environment holds what its wheels held, file by file, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from alula.errors import PackageError
from alula.stack.contents import Contents
from alula.stack.layout import places, site_packages

_ADDED = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json")
_OF_VENV = ("_virtualenv.py", "_virtualenv.pth")

Advance = Callable[[int], None]


def check_installed(
    folder: Path, wheels: Sequence[Contents], python: str, advance: Advance
) -> None:
    """PackageError where a file is missing, differs from its wheel, or is of no wheel.

    Two readers of one archive can see two sets of files; this is the proof that ours and uv's
    did not. `advance` is told bytes.
    """
    site = site_packages(python)
    expected = {f"{site}/{name}" for name in _OF_VENV}
    for contents in wheels:
        expected |= {f"{site}/{contents.info}/{name}" for name in _ADDED}
        for place in places(contents, python):
            expected.add(place.path)
            path = folder / place.path
            if not path.is_file() or path.is_symlink():
                raise _differs(f"{place.path} of {contents.wheel.filename} is not there")
            if place.written:
                if _hash(path) != place.content:
                    raise _differs(f"{place.path} differs from {contents.wheel.filename}")
                advance(path.stat().st_size)
    for path in _files(folder / site):
        if str(path.relative_to(folder)) not in expected:
            raise _differs(f"{path.relative_to(folder)} comes from no wheel")


def size_of(folder: Path) -> int:
    """Bytes of all files, links not followed."""
    return sum(path.lstat().st_size for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    for above, _, names in os.walk(folder):
        yield from (Path(above, name) for name in names)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _differs(why: str) -> PackageError:
    return PackageError(
        "what was installed is not what the wheels hold",
        why,
        "the environment is not used; run the same command again, or plan without this wheel",
    )
