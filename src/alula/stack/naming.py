"""Environments as a person names them: recorded ones by name, others by their folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from alula.errors import MachineError, UsageError
from alula.stack import link
from alula.stack.places import CURRENT, Places, known
from alula.stack.records import Record, read_record

_BASELINE = "baseline"


class Named(NamedTuple):
    """A folder, and what is recorded of it; None where it is of nobody's."""

    path: Path
    record: Record | None


def named(places: Places, text: str) -> Named:
    """What `current`, `baseline`, the name of a recorded environment, or a path stands for.

    A name comes before a folder of that name beside it: `./NAME` is the folder. Raises UsageError
    where it stands for nothing.
    """
    if "/" not in text:
        if (record := _recorded(places, text)) is not None:
            return Named(record.path, record)
        if not Path(text).is_dir():
            names = known(file.stem for file in places.records())
            raise UsageError(
                f"there is no environment {text!r}",
                f"it is no folder here, and no name of a recorded one: {names}",
                "see alula stack list, or name the folder of a virtual environment",
            )
    path = Path(text).expanduser()
    there = path.resolve()
    found = (record for record in _readable(places) if record.path.resolve() == there)
    return Named(path, next(found, None))


def _readable(places: Places) -> Iterator[Record]:
    """Without those that are damaged: they do not stand in the way of another environment."""
    for file in places.records():
        with suppress(MachineError):
            if (record := read_record(places, file.stem)) is not None:
                yield record


def _recorded(places: Places, name: str) -> Record | None:
    if name == CURRENT:
        return _current(places)
    if name in (file.stem for file in places.records()):
        return read_record(places, name)
    adopted = [record for record in _readable(places) if record.baseline and name == _BASELINE]
    if len(adopted) > 1:
        raise UsageError(
            "there are several baselines",
            f"adopted are {known(record.name for record in adopted)}",
            "name one of them",
        )
    return adopted[0] if adopted else None


def _current(places: Places) -> Record:
    name = link.current(places)
    record = read_record(places, name) if name else None
    if record is None:
        raise UsageError(
            "there is no current environment",
            f"no record knows {name}" if name else "nothing has been switched to",
            "alula stack switch NAME, or name an environment",
        )
    return record
