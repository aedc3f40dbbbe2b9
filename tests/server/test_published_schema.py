"""Whatever the published schema allows, and much that it does not, brings no 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving import ServerProcess

_CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance")


def run(server: ServerProcess, folder: Path, *options: str) -> None:
    """In `folder`, where schemathesis keeps its notes."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    finished = subprocess.run(
        [*command, "--checks", ",".join(_CHECKS), "--seed", "5", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "Tested: 9" in finished.stdout
    assert server.get("/ready").status_code == 200


def test_schemathesis_finds_no_server_error(server: ServerProcess, tmp_path: Path) -> None:
    run(server, tmp_path, "--phases", "fuzzing", "-n", "10")


@pytest.mark.slow
def test_schemathesis_finds_none_in_all_its_phases(server: ServerProcess, tmp_path: Path) -> None:
    run(server, tmp_path, "-n", "100")
