"""`python -m alula.training`: what `alula train` does, with Python's own option parser."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from alula.engine.llm import device_named
from alula.errors import AlulaError
from alula.models.load import load
from alula.models.progress import Task
from alula.training.run import STAGES, Recipe, Run


def main(arguments: list[str]) -> int:
    """Run the stages asked for; returns the exit code."""
    asked = _parser().parse_args(arguments)
    given = {field.name: getattr(asked, field.name) for field in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    try:
        model = load(asked.model, device_named(asked.device), asked.dtype, _lines)
        run = Run(
            recipe,
            asked.out,
            model,
            _lines,
            _say,
            resume=asked.resume,
            start=asked.start,
            stages=asked.stage or STAGES,
        )
        run.all()
    except AlulaError as error:
        sys.stderr.write(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m alula.training")
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", action="append", choices=STAGES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--start", type=Path)
    for field in fields(Recipe):
        if field.name != "model":
            kind = {"prompts": str, "rate": float}.get(field.name, int)
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind)
    return parser


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


@contextmanager
def _lines(description: str, total: int, /) -> Iterator[Task]:
    """A line at the end of each piece of work that took long."""
    started = time.perf_counter()
    yield _Counted()
    if (seconds := time.perf_counter() - started) > 1:
        _say(f"{description}: {total:,} in {seconds:.1f} s")


class _Counted:
    def advance(self, _amount: int, /) -> None:
        """Nothing is shown on the way."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
