"""The lock: everything that was decided and read, so that a plan can be built again or judged.

A plan writes it, building an environment reads it. Its bytes are stable: the same plan is the same
file. No credential of an index ever stands in it.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from alula.errors import UsageError

_LARGEST = 64 << 20
_SCHEMES = ("file", "http", "https")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"an address of the kind {parts.scheme or 'none'!r}")
    if "@" in parts.netloc:
        raise ValueError("an address with credentials in it")
    return url


def _plain_name(filename: str) -> str:
    if _FILE_NAME.fullmatch(filename) is None:
        raise ValueError(f"{filename!r} is no file name of a wheel")
    return filename


Url = Annotated[str, AfterValidator(_without_credentials)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, AfterValidator(_plain_name)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Toolkit(_Record):
    """Where the compiler of run-time kernels comes from."""

    kind: Literal["none", "folder", "wheels", "owner"]
    version: str | None = None
    path: str | None = None
    command: str | None = None
    """For the owner of the machine to run; alula never does."""
    reason: str = ""


class IndexPage(_Record):
    """One page of an index as it was read."""

    name: str
    url: Url
    state: Literal["read", "cached", "down", "undated"]
    sha256: Sha256 | None = None
    read_at: datetime | None = None


class Wheel(_Record):
    """One file to install, and why this one."""

    name: str
    version: str
    filename: FileName
    url: Url
    sha256: Sha256
    size: int | None = Field(default=None, ge=0)
    index: str = ""
    reason: str = ""
    architectures: tuple[str, ...] | None = None
    """Device code that was read in it; None where it was not looked into."""


class Override(_Record):
    """A pin of somebody that is not kept, said openly."""

    package: str
    pinned_by: str
    requirement: str
    reason: str


class Closed(_Record):
    """A gate that the plan does not open."""

    gate: str
    why: str
    opens_with: str


class Lock(_Record):
    """A whole plan."""

    format: Literal[1] = 1
    created: datetime
    python: str
    tags: str
    cuda: str | None = None
    toolkit: Toolkit
    indexes: tuple[IndexPage, ...] = ()
    packages: tuple[Wheel, ...] = ()
    overrides: tuple[Override, ...] = ()
    not_offered: tuple[str, ...] = ()
    """Packages that were built on the machine of the baseline, and that no index has."""
    opens: tuple[str, ...] = ()
    stays_closed: tuple[Closed, ...] = ()
    risks: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """The lock in a file; UsageError where it is none."""
        try:
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise UsageError(
                f"there is no lock {path}",
                "no file is called so",
                "write one with alula stack plan --out FOLDER",
            ) from error
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is not a lock",
                _first_of(error) if isinstance(error, ValidationError) else str(error),
                "write one with alula stack plan --out FOLDER",
            ) from error

    def write(self, path: Path) -> None:
        """Write it whole, in bytes that depend on its content alone."""
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(self.to_bytes())
        partial.replace(path)

    def to_bytes(self) -> bytes:
        """As JSON: fields sorted, one each line."""
        fields = self.model_dump(mode="json")
        text = json.dumps(fields, sort_keys=True, indent=2, ensure_ascii=False)
        return f"{text}\n".encode()


def _first_of(error: ValidationError) -> str:
    """The first field that does not fit; its value may be a secret and is not shown."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
