"""`alula stack plan`: the upgrade worth making, found before a byte of it is installed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli import whatif_options
from alula.cli.console import messages, print_dim, print_json, progress_bar
from alula.cli.stack_options import environment_named
from alula.errors import MachineError, UsageError

if TYPE_CHECKING:
    from alula.machine.facts import Machine
    from alula.stack.catalog import Target

_UNSATISFIABLE = 3
_LONGEST_SECONDS = 86400.0


def plan(
    want: Annotated[
        list[str] | None,
        typer.Option(
            help="A package that is wanted, as in sglang==0.5.9; may be repeated.",
            metavar="REQUIREMENT",
        ),
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            help="A feature that is to be opened, as alula doctor names it.", metavar="FEATURE"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that is to start: a name, or a config.json.", metavar="MODEL"),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Judge a plan made by hand, a TOML file.", metavar="PLAN"),
    ] = None,
    cuda: Annotated[
        str | None, typer.Option(help="The CUDA release that it is to be, as in 13.0.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="The environment to start from: a name of alula stack list or a folder, by "
            "default the current one.",
            metavar="ENV",
        ),
    ] = None,
    machine: whatif_options.Machine = None,
    gpu: whatif_options.Gpus = None,
    driver: whatif_options.Driver = None,
    links: whatif_options.Links = None,
    python: Annotated[str, typer.Option(help="The Python that it is for.")] = "3.12",
    glibc: Annotated[
        str | None,
        typer.Option(help="The glibc that it is for, by default this machine's.", metavar="X.Y"),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            help="An index: NAME=ADDRESS, or the name of a known one; where any is given, only "
            "those are read. May be repeated.",
            metavar="INDEX",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(help="As it was at the end of this day, UTC.", metavar="YYYY-MM-DD"),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use what was read before, and ask no index.")
    ] = False,
    wheelhouse: Annotated[
        Path | None, typer.Option(help="A folder with wheels that need not be fetched.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an index.")] = 30.0,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Look into wheels even where that is more than 1 GB to fetch."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the lock, requirements.txt and a uv project into this folder.",
            metavar="FOLDER",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
) -> None:
    """Find a set of packages that satisfies their requirements and what no resolver checks.

    One CUDA among the binaries, driver, images for every GPU, sonames, symbols, files, start-up
    checks of the model. Nothing is installed. Exits with 3 where nothing satisfies what is
    wanted, where a goal stays closed, or where a plan made by hand contradicts itself; with 6
    where an index did not answer and that may be why.
    """
    from alula.stack.ask import Question, answer
    from alula.stack.indexes import chosen_indexes
    from alula.stack.places import stack_home

    question = Question(
        wanted=tuple(want or ()),
        goals=tuple(goal or ()),
        model=model or "",
        hand_made=check,
        cuda=_release(cuda),
        indexes=chosen_indexes(index or ()),
        target=_target(python, glibc),
        as_of=_end_of_day(as_of),
        offline=offline,
        wheelhouse=_folder(wheelhouse),
        seconds=_seconds(timeout),
        machine=_machine(machine, gpu, driver, links),
        assumed=any(each is not None for each in (machine, gpu, driver, links)),
        baseline=environment_named(env).path if env else _current(),
        environ=os.environ,
        cache=_cache(),
        kept=stack_home().wheels,
        free_bytes=shutil.disk_usage(_home()).free,
    )
    _make(out)
    found = answer(question, _may_read(yes, json), progress_bar, _telling)
    written: tuple[Path, ...] = ()
    if out is not None and found.plan.lock is not None:
        from alula.stack.emit import emit

        written = emit(found.plan.lock, question.indexes, out)
    if json:
        from alula.cli.stack_plan_json import as_json

        print_json(as_json(found, written))
    else:
        from alula.cli.stack_plan_view import print_answer

        print_answer(found, written)
    if not found.holds:
        raise typer.Exit(MachineError.exit_code if found.is_in_the_dark else _UNSATISFIABLE)


def _release(text: str | None) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d{2})\.(\d{1,2})", text or "")
    if text and not found:
        raise UsageError(
            f"--cuda {text!r} is not a release", "it is major and minor version", "as in 13.0"
        )
    return (int(found[1]), int(found[2])) if found else None


def _target(python: str, glibc: str | None) -> Target:
    from alula.stack.catalog import Target

    if re.fullmatch(r"3\.\d{1,2}", python) is None:
        raise UsageError(
            f"--python {python!r} is not a version", "it is major and minor version", "as in 3.12"
        )
    text = glibc or platform.libc_ver()[1] or "2.28"
    found = re.fullmatch(r"2\.(\d{1,2})", text)
    if found is None:
        raise UsageError(f"--glibc {text!r} is not a version", "glibc is at 2", "as in 2.35")
    return Target(python, (2, int(found[1])), platform.machine())


def _end_of_day(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise UsageError(f"--as-of {text!r} is no day", str(error), "as in 2026-02-28") from error
    return day + timedelta(days=1)


def _folder(path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        raise UsageError(
            f"--wheelhouse {path} is no folder", "wheels are looked for in it", "make it"
        )
    return path


def _seconds(timeout: float) -> float:
    if not 0 < timeout < _LONGEST_SECONDS:
        raise UsageError(
            f"--timeout {timeout:g} is no time to wait",
            f"it is a number of seconds above 0 and below {_LONGEST_SECONDS:g}",
            "as in 30",
        )
    return timeout


def _make(out: Path | None) -> None:
    """A folder that cannot be written is found before the search, not after it."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "uv").mkdir(exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"the plan cannot be written to {out}",
            error.strerror or str(error),
            "name another folder with --out",
        ) from error


def _machine(
    machine: str | None, gpu: list[str] | None, driver: str | None, links: str | None
) -> Machine:
    from alula.machine.observe import observe
    from alula.machine.whatif import WhatIf, resolve

    return resolve(WhatIf(machine, gpu or (), driver, links), observe)


def _home() -> Path:
    """The folder, of those above the store, that is there: its disk is the store's."""
    from alula.stack.places import stack_home

    home = stack_home().root
    return next(folder for folder in (home, *home.parents) if folder.is_dir())


def _current() -> Path | None:
    """The environment that is switched to, where there is one."""
    from alula.stack import link
    from alula.stack.places import stack_home
    from alula.stack.records import need_ready

    places = stack_home()
    name = link.current(places)
    return need_ready(places, name).path if name else None


def _cache() -> Path | None:
    """Where pages and facts are kept; a plan whose cache cannot be written works without one."""
    with suppress(MachineError, RuntimeError):
        from alula.models.home import cache_folder

        return cache_folder("packages")
    return None


def _may_read(yes: bool, as_json: bool) -> Callable[[int], bool]:
    """Asks before much is fetched; a pipe gives no yes."""

    def may_read(size: int) -> bool:
        if yes or as_json or not sys.stdin.isatty():
            return yes
        messages().print(f"To look into the wheels, {size / 1e9:.1f} GB have to be fetched.")
        return typer.confirm("Fetch them?", err=True)

    return may_read


def _telling(words: str) -> None:
    print_dim([f"{words} …"])
