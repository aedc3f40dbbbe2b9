"""Wheels from the addresses of a lock to files whose bytes are the ones that were locked.

A file takes its place only when it is whole and its hash is right; what has been fetched is kept,
so that a second run goes on where the first one ended.
"""

from __future__ import annotations

import hashlib
import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from alula.errors import AlulaError, MachineError, PackageError
from alula.models.home import need_space, sweep, whole_file
from alula.models.progress import Progress
from alula.stack.lock import Wheel
from alula.stack.places import Places

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
    with (
        progress("downloading wheels", total) as task,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        running = [pool.submit(_fetch, places, wheel, task.advance, stop) for wheel in wanted]
        try:
            return sum(one.result() for one in as_completed(running))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _fetch(places: Places, wheel: Wheel, advance: Advance, stop: threading.Event) -> int:
    target = places.wheel(wheel.sha256, wheel.filename)
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent)
    try:
        with urllib.request.urlopen(wheel.url, timeout=_SECONDS) as answer:
            size = _announced(answer, wheel)
            with whole_file(target, size, f"download {wheel.filename}") as file:
                return _copy(answer, file, wheel, size, advance, stop)
    except AlulaError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise _gone(wheel, f"{_host(wheel)} answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, FileNotFoundError):
            raise _gone(wheel, "the file is not there") from error
        raise _down(wheel, str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _down(wheel, str(error) or type(error).__name__) from error


def _announced(answer: http.client.HTTPResponse, wheel: Wheel) -> int:
    """Bytes that are to come; 0 where nobody says."""
    length = answer.headers.get("Content-Length") or ""
    if length.isdigit() and wheel.size is not None and int(length) != wheel.size:
        raise PackageError(
            f"{wheel.filename} is not the file that was locked",
            f"{_host(wheel)} announces {length} bytes, the lock says {wheel.size}",
            "plan again: the file at this address was replaced",
        )
    return int(length) if length.isdigit() else wheel.size or 0


def _copy(
    answer: http.client.HTTPResponse,
    file: BinaryIO,
    wheel: Wheel,
    size: int,
    advance: Advance,
    stop: threading.Event,
) -> int:
    digest, got = hashlib.sha256(), 0
    for piece in _pieces(answer, wheel):
        if stop.is_set():
            raise _StoppedError
        got += len(piece)
        if size and got > size:
            raise _differs(wheel, f"more than its {size} bytes came")
        digest.update(piece)
        file.write(piece)
        advance(len(piece))
    if got < size:
        raise MachineError(
            f"the download of {wheel.filename} broke off",
            f"{got} of {size} bytes came from {_host(wheel)}",
            "run the same command again; what is complete is kept",
        )
    if digest.hexdigest() != wheel.sha256:
        raise _differs(wheel, f"its sha256 is {digest.hexdigest()}, the lock says {wheel.sha256}")
    return got


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


def _differs(wheel: Wheel, why: str) -> PackageError:
    return PackageError(
        f"{wheel.filename} from {_host(wheel)} is not the file that was locked",
        why,
        "nothing of it is kept; plan again, or ask the index what happened to the file",
    )


def _gone(wheel: Wheel, why: str) -> PackageError:
    return PackageError(
        f"{wheel.filename} is no longer at its address",
        f"{why}: {wheel.url}",
        "plan again; indexes of nightly builds keep a file for some weeks only",
    )


def _down(wheel: Wheel, why: str) -> MachineError:
    return MachineError(
        f"the index {wheel.index or _host(wheel)} does not answer for {wheel.filename}",
        f"{_host(wheel)}: {why}",
        "run the same command again when it does; what is complete is kept",
    )


def _host(wheel: Wheel) -> str:
    return urlsplit(wheel.url).hostname or "this machine"
