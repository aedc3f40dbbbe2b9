"""What nvidia-smi says about clocks is read, and its silence is no error."""

from __future__ import annotations

import pytest

from alula.bench.clocks import clocks, read


def test_clocks_are_read_by_name() -> None:
    assert read("1980, 3201, 1980, 3201\n345, 1593, 1980, 3201\n") == {
        "clocks.sm": 1980,
        "clocks.mem": 3201,
        "clocks.max.sm": 1980,
        "clocks.max.mem": 3201,
    }
    assert read("[N/A], 3201, 1980, [N/A]\n") == {"clocks.mem": 3201, "clocks.max.sm": 1980}
    assert read("") is None


def test_without_a_driver_nothing_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert clocks() is None
