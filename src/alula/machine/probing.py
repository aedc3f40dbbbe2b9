"""Probes: what only running something can tell, each in a child process of its own.

A probe is a script that imports nothing of alula, run by the examined environment's own Python.
It prints one line of JSON. It has a time and a memory limit; what it leaves behind is ended, and
a child that cannot be ended is named.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from alula.errors import UsageError
from alula.machine.facts import Machine
from alula.machine.probe_child import Ending, Outcome, run_script
from alula.machine.source import exists

_SCRIPTS = Path(__file__).with_name("probes")
NAMES = ("import", "kernel", "p2p", "collective")
"""In the order in which they are run: each needs what the one before shows."""

SECONDS = {"import": 180.0, "kernel": 180.0, "p2p": 120.0, "collective": 240.0}
_IDLE_MEMORY = 2 << 30
"""Bytes that the driver itself may hold of a GPU on which nobody computes."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The probes to run, in their order; UsageError for a name that is none."""
    unknown = [name for name in names if name not in (*NAMES, "all")]
    if unknown:
        raise UsageError(
            f"there is no probe {unknown[0]!r}",
            "a probe is a script that alula brings",
            f"name one of {', '.join(NAMES)}, or all",
        )
    return tuple(name for name in NAMES if name in names or "all" in names)


def check_idle(machine: Machine, force: bool) -> None:
    """UsageError where somebody computes on a GPU that the probes would use."""
    # A container hides the processes of others, but not the memory that they hold.
    idle = _IDLE_MEMORY if machine.platform.container else math.inf
    busy = [
        str(gpu.index) for gpu in machine.visible() if gpu.processes or gpu.memory_used_bytes > idle
    ]
    if busy and not force:
        raise UsageError(
            f"GPU {', '.join(busy)} is in use",
            "a probe takes memory and time from whoever computes there",
            "wait, hide it with CUDA_VISIBLE_DEVICES, or give --force",
        )


def run_probes(
    names: Sequence[str], python: Path, gpus: int, environ: Mapping[str, str]
) -> Iterator[Outcome]:
    """Run probes one after another. Where there is no GPU only the imports are tried."""
    for name in names:
        if name != "import" and not gpus:
            yield Outcome(name, Ending.NOT_RUN, findings=("no GPU is visible",))
        elif name in ("p2p", "collective") and gpus < 2:
            yield Outcome(name, Ending.NOT_RUN, findings=("it needs two GPUs",))
        else:
            yield run_probe(name, [script_of(name)], SECONDS[name], python, environ)


def script_of(name: str) -> Path:
    """The script of a probe."""
    return _SCRIPTS / f"{name}_probe.py"


def run_probe(
    name: str,
    command: Sequence[str | Path],
    seconds: float,
    python: Path,
    environ: Mapping[str, str],
    isolated: bool = True,
) -> Outcome:
    """Run a script by an environment's Python: its path, and its arguments.

    An isolated one sees nothing of PYTHONPATH and of the folder that it lies in.
    """
    flags = ["-I"] if isolated else []
    with tempfile.TemporaryDirectory() as caches:
        within = _activated(python, environ, Path(caches))
        full = [str(python), *flags, *map(str, command)]
        return run_script(name, full, seconds, environ=within)


def _activated(python: Path, environ: Mapping[str, str], caches: Path) -> dict[str, str]:
    """The variables of an activated environment, and caches of its own.

    What a probe compiles must neither come from an earlier run nor be left for a later one:
    FlashInfer's cache does not tell the kernels of two toolkits apart (flashinfer#3229).
    """
    return {
        **environ,
        "PATH": f"{python.parent}{os.pathsep}{environ.get('PATH', '')}",
        "FLASHINFER_WORKSPACE_BASE": str(caches),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCH_EXTENSIONS_DIR": str(caches / "torch"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
    }


def python_of(prefix: Path) -> Path:
    """The interpreter of an environment, not resolved: a link is what makes it one.

    Raises UsageError where there is none.
    """
    if prefix == Path(sys.prefix):
        return Path(sys.executable)
    for name in ("bin/python", "bin/python3", "Scripts/python.exe"):
        if exists(prefix / name):
            return prefix / name
    raise UsageError(
        f"{prefix} has no Python to run probes with",
        "there is no bin/python in it",
        "leave --probe out, or name the folder of a virtual environment",
    )
