"""`python -m alula.bench.kernels_command`: what `alula bench kernels` does, with Python's own
option parser, for machines that lack the command line's libraries.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from alula.bench import results
from alula.bench.shapes import Matrix, Subject, drafter_matrices, matrices, subject
from alula.errors import AlulaError, MachineError, UsageError

ROWS = (1, 4, 16, 33, 64, 256, 1024, 2048)
PACKAGES = ("alula", "torch", "triton")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What is measured."""

    shapes: Sequence[str] = ("llama-8b", "smollm2")
    rows: Sequence[int] = ROWS
    tune: bool = False
    drafter: bool = False
    """Measure the matrices of a drafter too."""
    out: Path | None = None
    """A result file, or with `tune` the architecture's table; None: the package's own table."""


def run(asked: Asked, say: Say) -> dict[str, Any]:
    """Measure, or tune; returns the result as it is written.

    Raises MachineError where there is no GPU, UsageError for a shape that is not known.
    """
    subjects = [subject(text) for text in asked.shapes]
    device = gpu()
    from alula.bench.timing import read_limit

    bandwidth = read_limit(device)
    say(f"a sum reads {bandwidth:.2f} TB/s: the memory limit that shares are of")
    with torch.inference_mode():
        if asked.tune:
            return _tune(asked, subjects, device, bandwidth, say)
        found = {each.name: _measure(asked, each, device, bandwidth, say) for each in subjects}
    settings = {"read_bandwidth_tb_per_s": bandwidth}
    record = results.record("bench kernels", settings, found, PACKAGES)
    if asked.out is not None:
        results.write(asked.out, record)
    return record


def parse_rows(text: str) -> tuple[int, ...]:
    """Read `1,16,64`. Raises UsageError for what is no number of rows."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(
            f"--rows {text!r} is not understood",
            "it holds whole numbers of at least 1, with commas between them",
            "write for example --rows 1,16,64",
        )
    return tuple(map(int, parts))


def gpu() -> torch.device:
    """The GPU. Raises MachineError where torch sees none, or Triton is missing."""
    if find_spec("triton") is None:
        raise MachineError(
            "there are no kernels to measure",
            "alula's are written in Triton, which is not installed",
            "install a CUDA build of torch, which brings Triton along",
        )
    if not torch.cuda.is_available():
        raise MachineError(
            "there is no GPU to measure",
            f"torch {torch.__version__} sees none",
            "run this on a machine with an NVIDIA GPU and a CUDA build of torch",
        )
    return torch.device("cuda")


def _matrices(each: Subject, drafter: bool) -> list[Matrix]:
    return matrices(each.shape) + (drafter_matrices(each) if drafter else [])


def _measure(
    asked: Asked, each: Subject, device: torch.device, bandwidth: float, say: Say
) -> dict[str, Any]:
    from alula.bench.kernels import attentions, linears

    dtype = torch.bfloat16
    found: dict[str, Any] = {"linears": [], "attention": []}
    say(f"{each.name}\n{'linear':>14} {'rows':>5}  {'tile':<22}{'us':>9}{'cuBLAS':>9}   of limit")
    for matrix in _matrices(each, asked.drafter):
        for timed in linears(matrix, asked.rows, dtype, device, bandwidth):
            tile = "x".join(map(str, timed.tile))
            say(
                f"{timed.name:>14} {timed.rows:5}  {tile:<22}{timed.us:9.1f}"
                f"{timed.cublas_us:9.1f} {100 * timed.share:9.0f} %"
            )
            found["linears"].append(timed._asdict())
        torch.cuda.empty_cache()
    for attention in attentions(each.shape, dtype, device, bandwidth):
        say(f"{attention.name:>43}{attention.us:9.1f}{100 * attention.share:19.0f} %")
        found["attention"].append(attention._asdict())
    return found


def _tune(
    asked: Asked, subjects: Sequence[Subject], device: torch.device, bandwidth: float, say: Say
) -> dict[str, Any]:
    from alula.bench.kernels import LinearBench, shared_bytes
    from alula.bench.tune import Chosen, as_text, tune, written
    from alula.ops.triton.tiles import FOLDER, Shape, file_name

    base = FOLDER / file_name(torch.cuda.get_device_capability(device))
    out = asked.out or base
    results.check_writable(out)
    room = shared_bytes(device)
    measured: dict[Shape, list[Chosen]] = {}
    content: dict[str, Any] = {}
    for each in subjects:
        for matrix in _matrices(each, asked.drafter):
            started = time.perf_counter()
            bench = LinearBench(matrix, torch.bfloat16, device)
            say(f"{each.name} {matrix.name} {matrix.outputs} x {matrix.inner}")
            own = measured[bench.shape] = []
            for chosen in tune(bench, room, bandwidth):
                own.append(chosen)
                _tell(chosen, say)
            del bench
            torch.cuda.empty_cache()
            content = written(out, base, measured) | {"measured_on": _where(bandwidth)}
            results.write_text(out, as_text(content))
            say(f"   {time.perf_counter() - started:.1f} s, saved to {out}")
    return content


def _tell(chosen: Any, say: Say) -> None:
    """A line for the best tile, then what lost."""
    best = chosen.best
    say(
        f"{chosen.rows:6} rows  {'x'.join(map(str, best.tile)):<20}{best.us:9.1f} us"
        f"   cuBLAS {chosen.cublas_us:9.1f}   {100 * chosen.share:4.0f} % of the read limit"
    )
    others = [trial for trial in chosen.trials if trial.tile != best.tile]
    lost = ", ".join(f"{'x'.join(map(str, t.tile))} {t.us:.1f}" for t in others[:6])
    say(f"             lost: {lost}")


def _where(bandwidth: float) -> dict[str, Any]:
    record = results.record("", {}, None, PACKAGES)
    return {
        "gpu": torch.cuda.get_device_name(),
        "date": record["date"],
        "versions": record["versions"],
        "clocks_mhz": record["machine"]["clocks_mhz"],
        "read_bandwidth_tb_per_s": round(bandwidth, 3),
    }


def main(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m alula.bench.kernels_command")
    parser.add_argument("--shape", action="append", help="llama-8b, smollm2 or a path; repeatable")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--drafter", action="store_true", help="a drafter's matrices too")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    shapes = asked.shape or Asked.shapes
    try:
        rows = parse_rows(asked.rows)
        run(Asked(shapes, rows, asked.tune, asked.drafter, asked.out), _print)
    except AlulaError as error:
        sys.stderr.write(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}\n")
        return error.exit_code
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
