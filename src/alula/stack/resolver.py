"""uv as the resolver: it finds versions, alula says what may be found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from alula.errors import MachineError
from alula.stack.catalog import Target
from alula.stack.offer import Offer, OfferServer
from alula.stack.uv import find_uv

_SECONDS = 600.0
_UNSATISFIABLE = 1


@dataclass(frozen=True)
class Asked:
    """What a set has to satisfy."""

    wanted: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    """Requirements that stand in place of everybody's own on these packages."""
    preferred: Mapping[str, str] | None = None
    """Versions that are kept where nothing speaks against them."""


@dataclass(frozen=True)
class Resolution:
    """A set of versions, or why there is none."""

    versions: Mapping[str, Version]
    refusal: str = ""
    """uv's own words where nothing satisfies what was asked."""

    def __bool__(self) -> bool:
        return not self.refusal


class Resolver:
    """Runs uv against offers. It is not told of any other index, and it builds nothing."""

    def __init__(self, server: OfferServer, target: Target) -> None:
        self._server, self._target = server, target
        self._uv = find_uv()
        self._cache = tempfile.TemporaryDirectory(prefix="alula-uv-")
        self.runs = 0

    def close(self) -> None:
        """Remove what uv has kept; every plan begins without."""
        self._cache.cleanup()

    def resolve(self, offer: Offer, asked: Asked) -> Resolution:
        """The versions that uv finds. Raises MachineError where uv itself fails."""
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="alula-plan-") as name:
            folder = Path(name)
            command = self._command(folder, self._server.add(offer), asked)
            done = _run(command, folder)
            if done.returncode == 0:
                return Resolution(_versions((folder / "out.txt").read_text("utf-8")))
        words = _plain(done.stderr)
        if done.returncode != _UNSATISFIABLE or "No solution found" not in words:
            raise offer.failures[0] if offer.failures else _failed(words)
        return Resolution({}, words)

    def _command(self, folder: Path, index: str, asked: Asked) -> list[str]:
        (folder / "in.txt").write_text("\n".join(asked.wanted) + "\n", "utf-8")
        (folder / "overrides.txt").write_text("\n".join(asked.overrides) + "\n", "utf-8")
        kept = (f"{name}=={version}" for name, version in (asked.preferred or {}).items())
        if asked.preferred:
            (folder / "out.txt").write_text("\n".join(kept) + "\n", "utf-8")
        return [
            self._uv,
            *("pip", "compile", "in.txt", "--output-file", "out.txt"),
            *("--overrides", "overrides.txt", "--default-index", index, "--no-config"),
            *(
                "--cache-dir",
                self._cache.name,
                "--no-build",
                "--no-header",
                "--no-annotate",
                "--no-progress",
            ),
            *("--color", "never", "--no-python-downloads", "--python", sys.executable),
            *("--python-version", self._target.python),
            *("--python-platform", _uv_platform(self._target)),
            *("--prerelease", "if-necessary-or-explicit", "--quiet", "--no-strip-markers"),
        ]


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            "uv has found no set in time",
            f"it was ended after {_SECONDS:.0f} s",
            "want less of the plan, or pin more: --want NAME==VERSION",
        ) from error


def _environment() -> dict[str, str]:
    """Without the settings of a person's own uv, which name other indexes."""
    own = ("UV_", "PIP_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _uv_platform(target: Target) -> str:
    return f"{target.machine}-manylinux_2_{max(28, min(40, target.glibc[1]))}"


def _versions(text: str) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "-")):
            requirement = Requirement(line.strip())
            (pin,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = Version(pin.version)
    return found


def _plain(words: str) -> str:
    """uv's message without its drawing characters."""
    lines = (line.strip(" ×╰─▶│├┬·\t") for line in words.splitlines())
    return " ".join(line for line in lines if line)


def _failed(words: str) -> MachineError:
    return MachineError(
        "uv could not look for a set",
        words[-600:] or "it said nothing",
        "see whether uv pip compile works here at all",
    )


def requirement_names(texts: Sequence[str]) -> tuple[str, ...]:
    """The packages that these requirements are on."""
    return tuple(canonicalize_name(Requirement(text).name) for text in texts)
