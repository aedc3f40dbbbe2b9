"""Result files: what was measured, on which machine, with which versions, when."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from alula.bench.clocks import clocks
from alula.errors import MachineError


def machine() -> dict[str, Any]:
    """What decides speed on this machine: processor, cores, memory, GPUs and their clocks, system.

    To be asked for right after the work, while the clocks are those it ran at.
    """
    gpus = _gpus()
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": _usable_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": gpus,
        "clocks_mhz": clocks() if gpus else None,
        "system": platform.platform(),
    }


def versions(packages: tuple[str, ...] = ("alula", "torch")) -> dict[str, str | None]:
    """Versions of Python and of `packages`, None for one that is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


def record(
    name: str,
    settings: Mapping[str, Any],
    results: Any,
    packages: tuple[str, ...] = ("alula", "torch"),
) -> dict[str, Any]:
    """A whole result: `results` under `name` with all that is needed to judge them."""
    return {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(packages),
        "settings": dict(settings),
        "results": results,
    }


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, whole or not at all. Raises MachineError where it cannot."""
    write_text(path, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all. Raises MachineError where it cannot."""
    with _writable(path) as partial:
        partial.write_text(text, "utf-8")
        partial.replace(path)


def check_writable(path: Path) -> None:
    """Raise MachineError now rather than after minutes of measuring."""
    with _writable(path) as partial:
        partial.touch()


@contextmanager
def _writable(path: Path) -> Iterator[Path]:
    """A file to write in the folder of `path`, gone afterwards unless it was renamed."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
    except OSError as error:
        raise MachineError(
            f"cannot write {path}",
            error.strerror or str(error),
            "choose another file with --out, or free the disk",
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _usable_threads() -> int | None:
    """Those this process may use: a container often gives fewer than the machine has."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else None


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
