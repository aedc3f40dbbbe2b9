"""Reading from indexes: with a time-out, over the network or from a folder, and kept.

What was read is kept with its hash and time, so that a plan can say what it stands on, and can be
made again without a network. Credentials of an address go to its own host, and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urljoin, urlsplit

import requests

from alula.stack.indexes import Index
from alula.stack.side_by_side import in_order

_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, "
    "application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
)
_FRESH = timedelta(minutes=10)
"""So long a page that was read is not asked for again."""
_CONNECT_SECONDS = 10.0
_LARGEST_PAGE = 256 << 20
_PIECE = 1 << 20
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Page:
    """One page of an index, or why there is none."""

    url: str
    state: Literal["read", "cached", "down"]
    body: bytes = b""
    """Empty too where the index has no such page."""
    content_type: str = ""
    read_at: datetime | None = None
    why: str = ""
    """What stood in the way of a page that is down."""

    @property
    def sha256(self) -> str | None:
        """Of its bytes; None where nothing was read."""
        return hashlib.sha256(self.body).hexdigest() if self.read_at else None


class Reader:
    """Pages and pieces of files. Safe for several threads."""

    def __init__(
        self, cache: Path | None = None, offline: bool = False, seconds: float = 30.0
    ) -> None:
        self.offline = offline
        self._cache = cache
        self._seconds = (min(_CONNECT_SECONDS, seconds), seconds)
        self._local = threading.local()
        self._credentials: dict[str, tuple[str, str]] = {}
        self._down: dict[str, str] = {}

    def page(self, index: Index, project: str) -> Page:
        """The page of a project. An index that once did not answer is not asked again."""
        url = urljoin(index.url, f"{project}/")
        kept = self._kept(url)
        remote = urlsplit(url).scheme != "file"
        if self.offline and remote:
            return kept or Page(url, "down", why="it was not read before, and this is offline")
        if kept and remote and kept.read_at and datetime.now(UTC) - kept.read_at < _FRESH:
            return kept
        if index.name not in self._down:
            self._remember(index)
            try:
                return self._keep(self._ask(url) if remote else _page_of_folder(url))
            except (requests.RequestException, OSError) as error:
                self._down[index.name] = _in_words(error)
        return kept or Page(url, "down", why=self._down[index.name])

    def pages(self, asked: Sequence[tuple[Index, str]]) -> list[Page]:
        """Several pages side by side, in the order in which they were asked for."""
        return list(in_order([partial(self.page, *each) for each in asked], _SIDE_BY_SIDE))

    def piece(self, url: str, start: int, end: int) -> tuple[int, bytes, int]:
        """Bytes `start` to `end` of a file: where they start, they, and the file's size.

        A negative `start` counts from the end. A host that knows no ranges gives the whole file.
        Raises OSError, of which requests' errors are.
        """
        if (parts := urlsplit(url)).scheme == "file":
            return _piece_of(Path(unquote(parts.path)), start, end)
        self._check_online(url)
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{end - 1}"
        answer = self._get(url, headers={"Range": wanted})
        if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
            return 0, answer.content, len(answer.content)
        said = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if said is None or int(said[2]) - int(said[1]) + 1 != len(answer.content):
            raise OSError("its host gives other pieces of it than it says")
        return int(said[1]), answer.content, int(said[3])

    def download(self, url: str, target: Path, advance: Callable[[int], None]) -> str:
        """A whole file into `target`; its sha256. Raises OSError where it breaks off."""
        digest = hashlib.sha256()
        with target.open("wb") as file:
            for data in self._stream(url):
                file.write(data)
                digest.update(data)
                advance(len(data))
        return digest.hexdigest()

    def _stream(self, url: str) -> Iterator[bytes]:
        if (parts := urlsplit(url)).scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                while data := file.read(_PIECE):
                    yield data
            return
        self._check_online(url)
        yield from self._get(url, stream=True).iter_content(_PIECE)

    def _check_online(self, url: str) -> None:
        if self.offline:
            raise OSError(f"{url} was not read before, and this is offline")

    def _ask(self, url: str) -> Page:
        now = datetime.now(UTC)
        answer = self._get(url, headers={"Accept": _ACCEPT}, stream=True, absent=True)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return Page(url, "read", read_at=now)
        body = bytearray()
        for data in answer.iter_content(_PIECE):
            body += data
            if len(body) > _LARGEST_PAGE:
                raise OSError(f"its page is larger than {_LARGEST_PAGE >> 20} MiB")
        return Page(url, "read", bytes(body), answer.headers.get("Content-Type", ""), now)

    def _get(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        stream: bool = False,
        absent: bool = False,
    ) -> requests.Response:
        answer = self._session().get(
            url,
            headers=headers,
            stream=stream,
            timeout=self._seconds,
            auth=self._credentials.get(urlsplit(url).netloc),
        )
        if not (absent and answer.status_code == HTTPStatus.NOT_FOUND):
            answer.raise_for_status()
        return answer

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        session: requests.Session = self._local.session
        return session

    def _remember(self, index: Index) -> None:
        parts = urlsplit(index.address)
        if parts.username:
            host = parts.netloc.rpartition("@")[2]
            self._credentials[host] = (unquote(parts.username), unquote(parts.password or ""))

    def _kept(self, url: str) -> Page | None:
        if self._cache is None:
            return None
        try:
            head, _, body = self._place(url).read_bytes().partition(b"\n")
            said = json.loads(head)
            read_at = datetime.fromisoformat(said["read_at"])
            return Page(url, "cached", body, said["content_type"], read_at)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, page: Page) -> Page:
        if self._cache is not None and page.read_at is not None:
            head = {"content_type": page.content_type, "read_at": page.read_at.isoformat()}
            place = self._place(page.url)
            new = place.with_suffix(f".{threading.get_native_id()}")
            with suppress(OSError):  # what cannot be kept is read again
                place.parent.mkdir(parents=True, exist_ok=True)
                new.write_bytes(json.dumps(head).encode() + b"\n" + page.body)
                new.replace(place)
        return page

    def _place(self, url: str) -> Path:
        assert self._cache is not None
        return self._cache / "pages" / hashlib.sha256(url.encode()).hexdigest()


def _page_of_folder(url: str) -> Page:
    """The page of an index that lies in a folder, as pip lays one out: NAME/index.html."""
    folder = Path(unquote(urlsplit(url).path))
    now = datetime.now(UTC)
    for name, kind in (("index.json", "application/vnd.pypi.simple.v1+json"), ("index.html", "")):
        if (folder / name).is_file():
            return Page(url, "read", (folder / name).read_bytes(), kind or "text/html", now)
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {folder.parent}")
    return Page(url, "read", read_at=now)


def _piece_of(path: Path, start: int, end: int) -> tuple[int, bytes, int]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first = max(0, size + start) if start < 0 else start
        file.seek(first)
        return first, file.read((size if start < 0 else end) - first), size


def _in_words(error: Exception) -> str:
    """Why an index did not answer, without its address."""
    if isinstance(error, requests.Timeout):
        return "it did not answer in time"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"it answers {error.response.status_code} {error.response.reason}".rstrip()
    if isinstance(error, requests.ConnectionError):
        return "it cannot be reached"
    if isinstance(error, requests.RequestException):
        return "it broke off"
    return str(error) if isinstance(error, OSError) else type(error).__name__
