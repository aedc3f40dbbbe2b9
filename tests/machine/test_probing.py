"""Child processes that fail, hang, grow and leave others behind."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from alula.errors import UsageError
from alula.machine import probe_child
from alula.machine.facts import Gpu, Machine, Platform
from alula.machine.probe_child import Ending, Outcome, run_script
from alula.machine.probing import NAMES, check_idle, check_names, python_of, run_probes


def probe(folder: Path, source: str, seconds: float = 20.0, memory: int = 1 << 30) -> Outcome:
    script = folder / "probe.py"
    script.write_text(source)
    return run_script("test", [sys.executable, "-I", str(script)], seconds, memory)


def test_an_answer_behind_noise(tmp_path: Path) -> None:
    source = 'print("hello"); print(\'{"findings": [], "measured": {"x": 1}}\'); print("bye")'
    outcome = probe(tmp_path, source)
    assert (outcome.ending, outcome.measured, outcome.stuck) == (Ending.PASSED, {"x": 1}, ())


def test_a_finding_fails(tmp_path: Path) -> None:
    outcome = probe(tmp_path, 'print(\'{"findings": ["wrong"], "measured": {}}\')')
    assert (outcome.ending, outcome.findings) == (Ending.FAILED, ("wrong",))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libcudart.so.13')", "exit code 1"),
        ("import os; os.abort()", "signal SIGABRT"),
        ("print('[1]')", "exit code 0"),
        ('print(\'{"findings": 3, "measured": {}}\')', "exit code 0"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)", "exit code 0"),
    ],
)
def test_no_answer_is_a_finding_with_the_last_words(tmp_path: Path, source: str, said: str) -> None:
    outcome = probe(tmp_path, source)
    assert outcome.ending is Ending.FAILED
    assert said in outcome.findings[0]
    if "libcudart" in source:
        assert "libcudart.so.13" in outcome.findings[-1]


def test_a_hang_ends_in_time_with_all_it_started(tmp_path: Path) -> None:
    source = (
        "import signal, subprocess, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = 'import time, signal as s; s.signal(s.SIGTERM, s.SIG_IGN); time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', inner], start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    outcome = probe(tmp_path, source, seconds=2.0)
    assert outcome.ending is Ending.HUNG
    assert outcome.stuck == ()
    assert time.monotonic() - start < 15
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_memory_is_bounded(tmp_path: Path) -> None:
    source = "import time; held = bytearray(400 << 20); time.sleep(30)"
    outcome = probe(tmp_path, source, memory=200 << 20)
    assert outcome.ending is Ending.TOO_LARGE


def test_without_gpus_nothing_is_passed() -> None:
    outcomes = list(
        run_probes(["kernel", "p2p", "collective"], Path(sys.executable), 0, os.environ)
    )
    assert [outcome.ending for outcome in outcomes] == [Ending.NOT_RUN] * 3
    alone = list(run_probes(["p2p"], Path(sys.executable), 1, os.environ))
    assert alone[0].findings == ("it needs two GPUs",)


def test_the_import_probe_runs_without_alula() -> None:
    (outcome,) = run_probes(["import"], Path(sys.executable), 0, os.environ)
    assert outcome.ending is Ending.PASSED
    assert "torch" in outcome.measured


@pytest.mark.parametrize("name", NAMES)
def test_probes_import_nothing_of_alula(name: str) -> None:
    import alula.machine.probing as probing

    script = Path(probing.__file__).with_name("probes") / f"{name}_probe.py"
    imports = [line for line in script.read_text().splitlines() if "import" in line.split("#")[0]]
    assert imports
    assert not [line for line in imports if "alula." in line]


def test_a_gpu_in_use_is_refused_unless_forced() -> None:
    machine = Machine(gpus=(Gpu(0, processes=1), Gpu(1)))
    with pytest.raises(UsageError, match="GPU 0 is in use"):
        check_idle(machine, force=False)
    check_idle(machine, force=True)
    hidden = replace(machine, gpus=(Gpu(0, processes=1, visible=False), Gpu(1)))
    check_idle(hidden, force=False)


def test_names_of_probes() -> None:
    assert check_names(["collective", "import"]) == ("import", "collective")
    assert check_names(["all"]) == NAMES
    with pytest.raises(UsageError, match="no probe 'gpu'"):
        check_names(["gpu"])


def test_an_environment_without_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python"):
        python_of(tmp_path)
    assert python_of(Path(sys.prefix)) == Path(sys.executable)


def test_a_child_that_has_left_its_family_and_session_is_ended(tmp_path: Path) -> None:
    source = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists({str(tmp_path / "pid")!r}) or not open({str(tmp_path / "pid")!r}).read():
    pass
print('{{"findings": [], "measured": {{}}}}', flush=True)
os._exit(0)
"""
    outcome = probe(tmp_path, source)
    left = int((tmp_path / "pid").read_text())
    assert (outcome.ending, outcome.stuck) == (Ending.PASSED, ())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_a_probe_that_prints_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_child, "_MOST_WRITTEN", 1 << 20)
    outcome = probe(tmp_path, "while True: print('garbage' * 100)")
    assert outcome.ending is Ending.TOO_LARGE


def test_parts_are_read_and_signals_without_a_name_too(tmp_path: Path) -> None:
    answer = '{"findings": [], "measured": {}, "parts": {"torch": ""}}'
    assert probe(tmp_path, f"print({answer!r})").parts == {"torch": ""}
    outcome = probe(tmp_path, "import os; os.kill(os.getpid(), 40)")
    assert outcome.findings[0] == "no answer, signal 40"


def test_an_answer_nested_without_end_is_none(tmp_path: Path) -> None:
    outcome = probe(tmp_path, "print('[' * 60_000)")
    assert (outcome.ending, outcome.findings[0]) == (Ending.FAILED, "no answer, exit code 0")


def test_in_a_container_memory_tells_that_a_gpu_is_in_use() -> None:
    gpu = Gpu(0, capability="12.0", memory_used_bytes=40 << 30)
    check_idle(Machine(gpus=(gpu,)), force=False)
    hidden = Machine(gpus=(gpu,), platform=Platform(container="docker"))
    with pytest.raises(UsageError, match="GPU 0 is in use"):
        check_idle(hidden, force=False)
    check_idle(hidden, force=True)


def test_without_sessions_children_are_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "killpg")
    outcome = probe(tmp_path, "import time; time.sleep(60)", seconds=0.5)
    assert (outcome.ending, outcome.stuck) == (Ending.HUNG, ())
