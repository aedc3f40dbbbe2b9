"""An index of alula's own on loopback, which shows uv what one plan allows and nothing else.

Each package comes from the one index it is bound to, each version as the one file that would be
installed, cut at a day, without what has been ruled out. So uv has nothing to choose wrongly, and
never asks the network itself. Requirements can be left out to find what a conflict stands on.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from alula.errors import AlulaError
from alula.stack.catalog import Catalog
from alula.stack.listing import Listing, WheelFile

Link = tuple[str, str]
"""A package and another that it requires."""


@dataclass
class Offer:
    """What one resolution may take."""

    catalog: Catalog
    cuda: str = ""
    banned: frozenset[tuple[str, str]] = frozenset()
    """Versions that are ruled out."""
    bindings: Mapping[str, str] = field(default_factory=dict)
    """Packages that are taken from an index of that name, whatever is usual."""
    kept: Callable[[str, str], bool] = field(default=lambda _package, _requires: True)
    """Which requirements count."""
    failures: list[AlulaError] = field(default_factory=list)
    """What could not be read on the way."""

    def files(self, project: str) -> Mapping[str, WheelFile]:
        """The wheels of a project by file name."""
        listing = self._listing(project)
        if listing is None:
            return {}
        offered = self.catalog.offered(listing)
        if not any(name == listing.project for name, _ in self.banned):
            return offered
        return {
            filename: file
            for filename, file in offered.items()
            if (file.name, str(file.version)) not in self.banned
        }

    def silent(self, project: str) -> Listing | None:
        """A listing that did not answer, where the package would be taken from it."""
        if project not in self.bindings:
            return self.catalog.silent(project, self.cuda)
        listing = self._listing(project)
        return listing if listing and not listing.is_up else None

    def binding(self, wanted: Iterable[str]) -> Offer:
        """The same where only what is wanted is taken from an index that is not the usual one."""
        names = {required_name(text) for text in wanted}
        kept = {name: index for name, index in self.bindings.items() if name in names}
        return replace(self, bindings=kept)

    def _listing(self, project: str) -> Listing | None:
        if project in self.bindings:
            named = self.bindings[project]
            index = next(each for each in self.catalog.indexes if each.name == named)
            return self.catalog.listing(index, project)
        return self.catalog.bound(project, self.cuda)

    def page(self, project: str) -> bytes:
        """The page of a project as JSON of the Simple API."""
        files = self.files(project)
        known = self.catalog.shown_pages
        key = (project, self.cuda, frozenset(files))
        if key in known:
            return known[key]
        entries = [
            {
                "filename": file.filename,
                "url": f"../../files/{file.name}/{file.filename}",
                "hashes": {"sha256": file.sha256} if file.sha256 else {},
                "yanked": file.yanked,
                "core-metadata": True,
            }
            for file in files.values()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": project, "files": entries}
        known[key] = json.dumps(page).encode()
        return known[key]

    def metadata(self, project: str, filename: str) -> bytes:
        """The METADATA of a wheel, under the version of its file name, with what it requires."""
        file = self.files(project)[filename]
        said = self.catalog.metadata(file)
        lines = ["Metadata-Version: 2.1", f"Name: {file.name}", f"Version: {file.version}"]
        lines += [f"Provides-Extra: {extra}" for extra in said.extras]
        lines += [
            f"Requires-Dist: {text}"
            for text in said.requires
            if self.kept(file.name, required_name(text))
        ]
        return ("\n".join(lines) + "\n\n").encode()


def required_name(text: str) -> str:
    """The package that a requirement is on; itself where it is none."""
    try:
        return canonicalize_name(Requirement(text).name)
    except InvalidRequirement:
        return text


class OfferServer(ThreadingHTTPServer):
    """Offers on loopback, each under an address of its own, so that none is mixed with another."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.offers: dict[str, Offer] = {}

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A connection that uv has closed is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def add(self, offer: Offer) -> str:
        """Show an offer; its address."""
        number = str(len(self.offers))
        self.offers[number] = offer
        return f"http://127.0.0.1:{self.server_address[1]}/{number}/simple/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer leaves in one piece: two small ones would wait for each other.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        number, kind, project, *rest = [*self.path.strip("/").split("/"), "", ""]
        assert isinstance(self.server, OfferServer)
        offer = self.server.offers[number]
        try:
            if kind == "simple":
                body = offer.page(project)
            else:
                body = offer.metadata(project, rest[0].removesuffix(".metadata"))
        except AlulaError as error:
            offer.failures.append(error)
            self.send_error(500)
            return
        except KeyError:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")  # no other offer has this address
        self.end_headers()
        with suppress(ConnectionError):  # uv is done as soon as it knows enough
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: nobody reads it."""


@contextmanager
def serving() -> Iterator[OfferServer]:
    """A server of offers that ends with the block."""
    server = OfferServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
