"""`python -m alula.bench.rounds_command`: what `alula bench decode --shape` does, with Python's own
option parser, for machines that lack the command line's libraries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from alula.bench import results
from alula.bench.anatomy_view import lines, svg
from alula.bench.clocks import clocks
from alula.bench.rounds import Measured, RoundPlan, RoundTimes, measure
from alula.bench.shapes import subject
from alula.bench.simulated import EXPLAINED, parse_rates
from alula.engine.llm import device_named
from alula.errors import AlulaError, MachineError, UsageError
from alula.models.progress import Progress, silent

DEFAULT_SHAPES = ("chain:3", "tree:4x4:32")
PACKAGES = ("alula", "torch", "triton")
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Say = Callable[[str], None]


def run(
    plan: RoundPlan,
    say: Say,
    *,
    device: str = "auto",
    dtype: str = "auto",
    out: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure and tell; returns the result as it is written.

    `out`: a result file; with a profile each round's picture lies beside it. Raises UsageError for
    a dtype or device that is not known, MachineError for a GPU or profile that is not to be had.
    """
    where, kind = _device(plan, device), _dtype(dtype)
    if out is not None:
        results.check_writable(out)
    head = f"{plan.subject.name}, random weights, {str(kind).removeprefix('torch.')}, "
    say(head + f"batch {plan.batch}, context {plan.context}, on {_called(where)}")
    if plan.simulated is not None:
        say(EXPLAINED)
    measured = measure(plan, where, kind, progress)
    for line in told(measured):
        say(line)
    record = _record(plan, measured, where, kind)
    if out is not None:
        results.write(out, record)
        for anatomy in measured.anatomies:
            picture = out.with_name(f"{out.stem}-{_file_name(anatomy.name)}.svg")
            picture.write_text(svg(anatomy), "utf-8")
            say(f"{picture} shows {anatomy.name}")
    return record


def told(measured: Measured) -> list[str]:
    """What was found, for people: a line for each shape, the memory limit, the anatomies."""
    found = [
        f"{'shape':<14}{'tok/s':>9}{'round ms':>10}{'of plain':>10}{'graph ms':>10}"
        f"{'idle us':>9}{'most':>7}{'tau':>7}  launches"
    ]
    found += [_row(times) for times in measured.times]
    forced = {times.shape: times.simulation_us for times in measured.times if times.simulation_us}
    found += [
        f"forcing acceptance adds {us:.1f} us to each round of {shape}; it is counted"
        for shape, us in forced.items()
    ]
    if measured.limit_ms is not None:
        plain = measured.times[0]
        found.append(
            f"memory limit {measured.limit_ms:.3f} ms at {measured.bandwidth:.2f} TB/s of reading: "
            f"the plain step reaches {100 * measured.limit_ms / plain.round_ms:.0f} %"
        )
    for anatomy in measured.anatomies:
        found += ["", *lines(anatomy)]
    return found


def _row(times: RoundTimes) -> str:
    launches = ", ".join(f"{count} {why}" for why, count in times.launches.items())
    return (
        f"{times.shape:<14}{times.tokens_per_second:9.1f}{times.round_ms:10.3f}"
        f"{times.of_plain:10.3f}{_known(times.graph_ms, 10, 3)}{_known(times.idle_us, 9, 1)}"
        f"{_known(times.most_idle_us, 7, 0)}"
        f"{times.tokens_per_round:7.2f}  {launches}"
    )


def _known(value: float | None, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def _record(
    plan: RoundPlan, measured: Measured, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    settings = {
        "shape": plan.subject.name,
        "decoder": {**asdict(plan.subject.shape), "eos_ids": sorted(plan.subject.shape.eos_ids)},
        "weights": "random",
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "speculation": list(plan.shapes),
        "batch": plan.batch,
        "context": plan.context,
        "rounds": plan.rounds * plan.repeats,
        "clocks_mhz": clocks() if device.type == "cuda" else None,
        "simulated_acceptance": plan.simulated,
        "note": None if plan.simulated is None else EXPLAINED,
    }
    return results.record("bench decode", settings, measured.as_json(), PACKAGES)


def _device(plan: RoundPlan, name: str) -> torch.device:
    named = device_named(name)
    if named not in ("cpu", "cuda"):
        raise UsageError(
            f"alula does not run on {named!r}", "it runs on cpu and cuda", "use one of these"
        )
    if named == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            "there is no CUDA device",
            f"torch {torch.__version__} sees none",
            "use --device cpu, or install a CUDA build of torch and the driver",
        )
    if plan.profile and named != "cuda":
        raise UsageError(
            "a round can only be taken apart on a GPU",
            "--profile reads the kernels of a captured round, and the CPU captures none",
            "add --device cuda on a machine with one, or leave --profile out",
        )
    return torch.device(named)


def _dtype(name: str) -> torch.dtype:
    known = {"auto": torch.bfloat16, **_DTYPES}
    if name not in known:
        raise UsageError(
            f"alula does not run in dtype {name!r}",
            f"it runs in {', '.join(_DTYPES)}",
            "use one of these, or auto",
        )
    return known[name]


def _called(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.replace(", ", "-")).strip("-")


def main(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if not asked.random_weights:
            raise bare_shape(asked.shape)
        rates = asked.simulate_acceptance
        plan = RoundPlan(
            subject=subject(asked.shape),
            speculation=tuple(asked.speculation or DEFAULT_SHAPES),
            batch=asked.batch,
            context=asked.context,
            simulated=None if rates is None else parse_rates(rates),
            profile=asked.profile,
            rounds=asked.rounds,
            repeats=asked.repeats,
        )
        run(plan, _print, device=asked.device, dtype=asked.dtype, out=asked.out)
    except AlulaError as error:
        sys.stderr.write(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}\n")
        return error.exit_code
    return 0


def bare_shape(shape: str) -> UsageError:
    """A shape without weights."""
    return UsageError(
        f"the shape {shape} has no weights",
        "--shape names sizes alone, and its tokens mean nothing",
        "add --random-weights, or name a model instead of --shape",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m alula.bench.rounds_command")
    parser.add_argument("--shape", required=True, help="llama-8b, smollm2 or a path")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--speculation", action="append", metavar="SHAPE")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--simulate-acceptance", metavar="P,…")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rounds", type=int, default=20, help="of each turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each shape")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path)
    return parser


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
