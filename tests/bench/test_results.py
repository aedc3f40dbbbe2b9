"""Result files say where they come from, and appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alula.bench import results
from alula.errors import MachineError


def test_a_record_names_machine_versions_date_and_settings(tmp_path: Path) -> None:
    record = results.record("a test", {"repeats": 3}, [1, 2], packages=("torch", "no-such"))
    path = tmp_path / "new" / "result.json"
    results.write(path, record)
    read = json.loads(path.read_text("utf-8"))
    assert read == record
    assert read["machine"]["cpu"] and read["machine"]["threads"] >= 1
    assert read["versions"]["torch"] and read["versions"]["no-such"] is None
    assert read["date"].endswith("+00:00")
    assert (read["settings"], read["results"]) == ({"repeats": 3}, [1, 2])
    assert [found.name for found in path.parent.iterdir()] == ["result.json"]


def test_a_record_of_a_gpu_names_its_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "clocks", lambda: {"clocks.sm": 1980})
    monkeypatch.setattr(results, "_gpus", lambda: ["NVIDIA H200"])
    assert results.machine()["clocks_mhz"] == {"clocks.sm": 1980}
    monkeypatch.setattr(results, "_gpus", list)
    assert results.machine()["clocks_mhz"] is None


def test_a_file_that_cannot_be_written_is_refused_and_the_old_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(MachineError) as refused:
        results.write(path, {})
    assert refused.value.why == "No space left on device"
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_or_a_path_through_a_file_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "result.json"):
        with pytest.raises(MachineError):
            results.check_writable(path)
    results.check_writable(tmp_path / "free.json")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
