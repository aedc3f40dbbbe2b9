"""What kill -9 does to a build of real wheels: the link, the baseline, and the next run.

    python benchmarks/stack_kills.py WHEELS --kills 25 --out benchmarks/results/stack_kills.json

WHEELS is a folder of wheels for this Python, such as `pip download --only-binary :all: -d WHEELS
torch numpy` leaves. They are served on the loopback interface, so that downloads are killed too.
Each round begins with nothing downloaded, kills a build at a random moment (alone, so that uv goes
on, or with all that it started, in turns), and looks at what is left; then the same command must
complete, and what it built must import.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from packaging.tags import platform_tags
from packaging.utils import parse_wheel_filename

from alula.bench import results
from alula.stack import journal, link
from alula.stack.build import name_of
from alula.stack.lock import Lock, Toolkit, Wheel
from alula.stack.places import Places
from alula.stack.records import read_record

_ALULA = [sys.executable, "-c", "from alula.cli.main import main; main()", "stack"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        pass  # readers are killed


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def lock_of(folder: Path, url: str) -> Lock:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Lock(
        created=datetime.now(UTC),
        python=python,
        tags=next(iter(platform_tags())),
        toolkit=Toolkit(kind="none"),
        packages=tuple(wheel(path, url) for path in sorted(folder.glob("*.whl"))),
    )


def wheel(path: Path, url: str) -> Wheel:
    name, version, _, _ = parse_wheel_filename(path.name)
    return Wheel(
        name=name,
        version=str(version),
        filename=path.name,
        url=f"{url}/{quote(path.name)}",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
    )


def hashes(folder: Path) -> dict[str, tuple[str, int]]:
    """Content and time of change of every file, and where links lead."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path)] = (str(path.readlink()), 0)
        elif path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path)] = (digest, path.stat().st_ctime_ns)
    return found


def alula(*arguments: str | Path) -> float:
    """Run a command to its end; seconds."""
    began = time.monotonic()
    subprocess.run([*_ALULA, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def kill_a_build(lock: Path, after: float, alone: bool) -> None:
    command = [*_ALULA, "apply", str(lock), "--python", sys.executable]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as child:
        try:
            child.wait(after)
        except subprocess.TimeoutExpired:
            (os.kill if alone else os.killpg)(child.pid, signal.SIGKILL)


def stage(places: Places, lock: Lock) -> str:
    """How far the killed build had come."""
    name = name_of(lock)
    record = read_record(places, name)
    if record is None:
        return "starting"
    if record.state != "building":
        return record.state
    if any(not places.wheel(each.sha256, each.filename).exists() for each in lock.packages):
        return "downloading"
    if not places.environment(name).exists():
        return "looking through"
    return "installing" if places.scratch(name).exists() else "checking"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--import", dest="module", default="torch", help="what must import at last")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, served(options.wheels) as url:
        os.environ["ALULA_HOME"] = home
        result = measure(Path(home), lock_of(options.wheels, url), options)
    sys.stdout.write(f"{result['results']}\n")
    if options.out:
        results.write(options.out, result)


def measure(home: Path, lock: Lock, options: argparse.Namespace) -> dict[str, Any]:
    places, chance = Places(home / "stack"), random.Random(options.seed)
    path, name = home / "lock.json", name_of(lock)
    lock.write(path)
    apply = ("apply", path, "--python", sys.executable)
    undisturbed = alula(*apply, "--name", "baseline")
    alula("switch", "baseline")
    before = hashes(places.environment("baseline"))
    stages, again = Counter[str](), []
    for number in range(options.kills):
        kill_a_build(path, chance.uniform(0.0, undisturbed), alone=bool(number % 2))
        stages[stage(places, lock)] += 1
        assert link.current(places) == "baseline"
        assert places.current.resolve() == places.environment("baseline")
        assert journal.read(places).damaged == 0
        again.append(alula(*apply))
        code = f"import {options.module}, sys; assert sys.prefix.endswith({name!r})"
        alula("run", "--env", name, "--", "python", "-c", code)
        assert hashes(places.environment("baseline")) == before
        alula("prune", "--keep", "0")
        shutil.rmtree(places.root / "wheels")
        sys.stderr.write(f"{number + 1} of {options.kills}: {dict(stages)}\n")
    found = {
        "kills": options.kills,
        "killed_while": dict(stages),
        "undisturbed_seconds": round(undisturbed, 1),
        "completed_by_the_next_run": len(again),
        "median_seconds_of_the_next_run": round(median(again), 1),
        "files_of_the_baseline_unchanged": len(before),
    }
    packages = {each.name: each.version for each in lock.packages}
    settings = {"seed": options.seed, "packages": packages}
    return results.record("stack_kills", settings, found, ("alula", "uv", "packaging", "pydantic"))


if __name__ == "__main__":
    main()
