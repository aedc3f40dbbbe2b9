"""Wheels from the addresses of a lock to files whose bytes are the ones that were locked.

A file takes its place only when it is whole and its hash is right. What has come of one that broke
off is kept beside it, and the next run asks for the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed, wait
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from io import BufferedRandom
from pathlib import Path
from urllib.parse import urlsplit

from alula.errors import AlulaError, MachineError, PackageError
from alula.models.home import need_space
from alula.models.progress import Progress
from alula.stack.lock import Wheel
from alula.stack.places import Places
from alula.stack.side_by_side import begin

_AT_ONCE = 4
_SECONDS = 30.0
_PIECE = 1 << 20

Advance = Callable[[int], None]


class _StoppedError(Exception):
    """Another download has failed."""


def missing(places: Places, wheels: Sequence[Wheel]) -> list[Wheel]:
    """Those that are still to be fetched."""
    return [wheel for wheel in wheels if not places.wheel(wheel.sha256, wheel.filename).is_file()]


def fetch(places: Places, wheels: Sequence[Wheel], progress: Progress) -> int:
    """Fetch what is missing, and return how many bytes that was.

    Raises MachineError where an index does not answer or the disk is full, PackageError where
    what comes is not what was locked.
    """
    wanted = missing(places, wheels)
    if not wanted:
        return 0
    total = sum(wheel.size or 0 for wheel in wanted)
    need_space(places.root, total, "download the wheels")
    stop = threading.Event()
    with progress("downloading wheels", total) as task:
        calls = [partial(_fetch, places, wheel, task.advance, stop) for wheel in wanted]
        running = begin(calls, _AT_ONCE)
        try:
            return sum(one.result() for one in as_completed(running))
        except Exception:
            stop.set()
            wait([one for one in running if not one.cancel()])
            raise


def _fetch(places: Places, wheel: Wheel, advance: Advance, stop: threading.Event) -> int:
    target = places.wheel(wheel.sha256, wheel.filename)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _part_of(target) as file:
            if target.is_file():  # another alula has fetched it meanwhile
                return 0
            got = _receive(wheel, file, advance, stop)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(target)
            return got
    except OSError as error:
        raise MachineError(
            f"{wheel.filename} cannot be written",
            error.strerror or str(error),
            f"look at the disk of {places.root}: its room and its permissions",
        ) from error


@contextmanager
def _part_of(target: Path) -> Iterator[BufferedRandom]:
    """What has come of a file so far, to be read and added to by one process at a time."""
    with target.with_name(f".{target.name}.part").open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _receive(wheel: Wheel, file: BufferedRandom, advance: Advance, stop: threading.Event) -> int:
    """Add what is missing; how many bytes came."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256")
    before = file.tell()
    if digest.hexdigest() == wheel.sha256:  # it was ended before the file took its place
        return 0
    with _asked(wheel, before) as answer:
        if before and answer.status != HTTPStatus.PARTIAL_CONTENT:
            file.truncate(0)
            digest, before = hashlib.sha256(), 0
        size = _announced(answer, wheel, before)
        advance(before)
        got = before
        for piece in _pieces(answer, wheel):
            if stop.is_set():
                raise _StoppedError
            digest.update(piece)
            file.write(piece)
            got += len(piece)
            advance(len(piece))
            if size and got > size:
                break
    _check(wheel, got, size, digest.hexdigest(), file)
    return got - before


def _check(wheel: Wheel, got: int, size: int, digest: str, part: BufferedRandom) -> None:
    """Keep what broke off, and nothing of what is wrong."""
    if got < size:
        raise MachineError(
            f"the download of {wheel.filename} broke off",
            f"{got} of {size} bytes came from {_host(wheel)}",
            "run the same command again; what has come is kept",
        )
    if digest != wheel.sha256:
        Path(part.name).unlink()
        raise PackageError(
            f"{wheel.filename} from {_host(wheel)} is not the file that was locked",
            f"{got} bytes came, their sha256 is {digest}, the lock says {wheel.sha256}",
            "nothing of it is kept; plan again, or ask the index what happened to the file",
        )


def _asked(wheel: Wheel, before: int) -> http.client.HTTPResponse:
    """What an index answers when it is asked for a file from byte `before` on."""
    request = urllib.request.Request(wheel.url)
    if before:
        request.add_header("Range", f"bytes={before}-")
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_SECONDS)
        return answer
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _asked(wheel, 0)
        fault = _gone if error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) else _down
        raise fault(wheel, f"it answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, FileNotFoundError):
            raise _gone(wheel, "the file is not there") from error
        raise _down(wheel, str(error.reason)) from error
    except (
        ValueError,
        http.client.InvalidURL,
    ) as error:  # of letters or a host that no address has
        raise _gone(wheel, f"its address is none ({error})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _down(wheel, str(error) or type(error).__name__) from error


def _announced(answer: http.client.HTTPResponse, wheel: Wheel, before: int) -> int:
    """Bytes of the whole file; 0 where nobody says."""
    length = answer.headers.get("Content-Length") or ""
    if not length.isdigit():
        return wheel.size or 0
    size = before + int(length)
    if wheel.size is not None and size != wheel.size:
        raise PackageError(
            f"{wheel.filename} is not the file that was locked",
            f"{_host(wheel)} announces {size} bytes, the lock says {wheel.size}",
            "plan again: the file at this address was replaced",
        )
    return size


def _pieces(answer: http.client.HTTPResponse, wheel: Wheel) -> Iterator[bytes]:
    """What comes; a fault of the network is told apart from one of the disk here."""
    try:
        while piece := answer.read(_PIECE):
            yield piece
    except (OSError, http.client.HTTPException) as error:
        raise _down(wheel, str(error) or type(error).__name__) from error


def check_hash(path: Path, wheel: Wheel) -> None:
    """PackageError where a file that was kept is no longer what was locked; it is removed then."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.sha256:
        path.unlink()
        raise PackageError(
            f"the kept file {wheel.filename} was damaged and is removed",
            f"its sha256 is {found}, the lock says {wheel.sha256}",
            "run the same command again: it is fetched anew",
        )


def _gone(wheel: Wheel, why: str) -> AlulaError:
    return PackageError(
        f"{wheel.filename} is no longer at its address",
        f"{why}: {wheel.url}",
        "plan again; indexes of nightly builds keep a file for some weeks only",
    )


def _down(wheel: Wheel, why: str) -> AlulaError:
    return MachineError(
        f"the index {wheel.index or _host(wheel)} does not give {wheel.filename}",
        f"{_host(wheel)}: {why}",
        "run the same command again when it does; what is complete is kept",
    )


def _host(wheel: Wheel) -> str:
    return urlsplit(wheel.url).hostname or "this machine"
