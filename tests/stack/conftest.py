"""What the tests of plans share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from alula.cli.main import run
from asking import MACHINE, Ask, February, Told
from february import HAND_MADE, put_february
from loopback_index import Site, serving_site


@pytest.fixture
def site() -> Iterator[Site]:
    with serving_site() as found:
        yield found


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
