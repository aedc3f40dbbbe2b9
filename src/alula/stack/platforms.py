"""Which wheels this machine and a Python take."""

from __future__ import annotations

import re
from itertools import chain

from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags

from alula.errors import PackageError
from alula.stack.lock import Lock

_PYTHON = re.compile(r"3\.(\d{1,2})")


def python_version(lock: Lock) -> tuple[int, int]:
    """Of the Python that a lock is for; PackageError where it is none that wheels are made for."""
    found = _PYTHON.fullmatch(lock.python)
    if found is None:
        raise PackageError(
            f"the lock is for Python {lock.python!r}",
            "a lock names a version such as 3.12",
            "plan again with --python",
        )
    return 3, int(found[1])


def accepted_tags(version: tuple[int, int]) -> frozenset[Tag]:
    """What CPython of this version takes on this machine."""
    interpreter = f"cp{version[0]}{version[1]}"
    return frozenset(
        chain(cpython_tags(version), compatible_tags(version, interpreter=interpreter))
    )


def check_platform(lock: Lock) -> None:
    """PackageError where the lock was made for another kind of machine."""
    here = list(platform_tags())
    if lock.tags not in here:
        newest = next((tag for tag in here if tag.startswith("manylinux_")), here[0])
        raise PackageError(
            f"the lock is for another platform: {lock.tags}",
            f"this machine takes {newest} and older",
            "plan again on this machine",
        )
