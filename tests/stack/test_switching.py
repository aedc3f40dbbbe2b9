"""Switches under readers and under kill -9: a reader sees the one or the other, whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from alula.stack import link
from alula.stack.journal import read
from alula.stack.places import Places
from made_wheels import pretend

_READER = """
import os, sys
current, seen, reads = sys.argv[1], set(), 0
print("up", flush=True)
while os.path.exists(sys.argv[2]):
    with open(current + "/marker") as file:  # raises where the link is missing
        file.read()
    folder = os.path.realpath(current)
    names = {os.path.basename(folder)}
    for path in ("marker", "lib/marker"):
        with open(os.path.join(folder, path)) as file:
            names.add(file.read())
    assert len(names) == 1, f"mixed: {names}"
    seen |= names
    reads += 1
assert seen == {"a", "b"}, f"saw only {seen}"
print(reads)
"""
_SWITCHER = """
import sys
from pathlib import Path
from alula.stack.link import switch
from alula.stack.places import Places
places = Places(Path(sys.argv[1]))
print("up", flush=True)
while True:
    for name in ("a", "b"):
        switch(places, name)
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(tmp_path / "stack")
    for name in "ab":
        folder = pretend(found, name).path
        (folder / "lib").mkdir(exist_ok=True)
        (folder / "lib/marker").write_text(name)
    link.switch(found, "a")
    return found


def _switches_under_readers(places: Places, switches: int, readers: int) -> int:
    """How many reads were made meanwhile; a reader that sees something wrong fails the test."""
    going = places.root / "going"
    going.touch()
    command = [sys.executable, "-c", _READER, str(places.current), str(going)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(readers)
    ]
    try:
        for reader in started:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "up\n"
        for number in range(switches):
            link.switch(places, "ba"[number % 2])
    finally:
        going.unlink()
        ended = [reader.communicate(timeout=60) for reader in started]
    assert [error for _, error in ended if error] == []
    assert len(read(places).entries) == switches + 1
    return sum(int(out) for out, _ in ended)


def test_readers_never_see_a_missing_or_mixed_environment(places: Places) -> None:
    assert _switches_under_readers(places, 500, 2) > 100


@pytest.mark.slow
def test_twenty_thousand_switches_under_four_readers(places: Places) -> None:
    reads = _switches_under_readers(places, 20_000, 4)
    sys.stdout.write(f"20000 switches, {reads} reads\n")
    assert reads > 20_000


def _killed_while_switching(places: Places, kills: int) -> None:
    chance, ways_back = random.Random(20261129), 0
    for _ in range(kills):
        command = [sys.executable, "-c", _SWITCHER, str(places.root)]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            time.sleep(chance.uniform(0.0, 0.1))
            child.send_signal(signal.SIGKILL)
        now = link.current(places)
        assert now in ("a", "b")
        assert (places.current / "marker").read_text() == now
        assert read(places).damaged == 0
        if (back := link.previous(places)) is not None:  # it may have been killed before the first
            assert link.rollback(places)[:2] == (now, back)
            ways_back += 1
    assert ways_back > kills // 2


def test_a_switch_killed_at_any_moment_leaves_a_link_and_a_way_back(places: Places) -> None:
    _killed_while_switching(places, 4)


@pytest.mark.slow
def test_a_hundred_switches_killed(places: Places) -> None:
    _killed_while_switching(places, 100)
