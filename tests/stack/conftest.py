"""What the tests of plans share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from alula.cli.main import run
from february import HAND_MADE, put_february
from loopback_index import Site, serving_site


class Told(NamedTuple):
    """One run of the command."""

    code: int
    out: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Ask = Callable[..., Told]
MACHINE = ("--machine", "8x-rtx-pro-6000", "--driver", "590.48.01", "--glibc", "2.35")


@pytest.fixture
def site() -> Iterator[Site]:
    with serving_site() as found:
        yield found


class February(NamedTuple):
    """The indexes of that month, and the owner's plan."""

    site: Site
    options: list[str]
    hand_made: Path


@pytest.fixture(scope="session")
def february(tmp_path_factory: pytest.TempPathFactory) -> Iterator[February]:
    folder = tmp_path_factory.mktemp("february")
    (folder / "plan.toml").write_text(HAND_MADE)
    with serving_site() as found:
        yield February(found, put_february(found, folder), folder / "plan.toml")


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `alula stack plan` for the machine of the case, with a home of its own."""
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "home"))

    def call(*arguments: str | Path, machine: tuple[str, ...] = MACHINE) -> Told:
        words = ["stack", "plan", *machine, *(str(argument) for argument in arguments)]
        code = run(words)
        return Told(code, capsys.readouterr().out)

    return call
