"""Package indexes on loopback: tiny wheels, pages in the layouts of the public indexes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

STAMP = (2026, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Made:
    """A wheel in memory."""

    filename: str
    data: bytes
    requires_python: str = ""
    uploaded: str = "2026-01-15T00:00:00Z"
    yanked: str = ""

    @property
    def project(self) -> str:
        return str(canonicalize_name(self.filename.partition("-")[0]))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def make_wheel(
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes | str] | None = None,
    tag: str = "py3-none-any",
    inner: str | None = None,
    build: str = "",
    uploaded: str = "2026-01-15T00:00:00Z",
    yanked: str = "",
    requires_python: str = "",
) -> Made:
    """A wheel; `inner` is the version that its METADATA states where it is another one."""
    said = inner or version
    stem = f"{name.replace('-', '_')}-{said}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {said}"]
    lines += [f"Requires-Python: {requires_python}"] if requires_python else []
    lines += [f"Requires-Dist: {text}" for text in requires]
    info = {
        f"{stem}.dist-info/METADATA": "\n".join(lines) + "\n\n",
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
        f"{stem}.dist-info/RECORD": "",
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in {**(files or {}), **info}.items():
            archive.writestr(zipfile.ZipInfo(path, STAMP), content)
    middle = f"-{build}" if build else ""
    filename = f"{name.replace('-', '_')}-{version}{middle}-{tag}.whl"
    return Made(filename, stream.getvalue(), requires_python, uploaded, yanked)


@dataclass
class Site:
    """Everything that the server answers, by path, and what it was asked for."""

    answers: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    without_ranges: tuple[str, ...] = ()
    """Beginnings of paths of which no pieces are given."""
    url: str = ""
    wrong_pieces: bool = False
    cut_short: bool = False
    credentials: set[str] = field(default_factory=set)
    """Those that it was given."""

    def put(self, path: str, body: bytes, kind: str = "application/octet-stream") -> None:
        self.answers[path] = (kind, body)

    def put_json(self, root: str, wheels: Sequence[Made]) -> None:
        """As PyPI: JSON with sizes and upload times, and no METADATA beside the wheels."""
        for project in {wheel.project for wheel in wheels}:
            files = [
                {
                    "filename": wheel.filename,
                    "url": f"{self.url}/files/{wheel.sha256}/{quote(wheel.filename)}",
                    "hashes": {"sha256": wheel.sha256},
                    "size": len(wheel.data),
                    "upload-time": wheel.uploaded,
                    "yanked": wheel.yanked or False,
                    "requires-python": wheel.requires_python or None,
                }
                for wheel in wheels
                if wheel.project == project
            ]
            page = {"meta": {"api-version": "1.1"}, "name": project, "files": files}
            kind = "application/vnd.pypi.simple.v1+json"
            self.put(f"{root}{project}/", json.dumps(page).encode(), kind)
        for wheel in wheels:
            self.put(f"/files/{wheel.sha256}/{wheel.filename}", wheel.data)

    def put_pytorch(self, root: str, wheels: Sequence[Made], hashed: bool = True) -> None:
        """As PyTorch: HTML with root-relative links, METADATA beside, no requires-python."""
        for project in {wheel.project for wheel in wheels}:
            links = []
            for wheel in (each for each in wheels if each.project == project):
                path = f"{root}{wheel.filename}"
                tail = f"#sha256={wheel.sha256}" if hashed else ""
                beside = ' data-dist-info-metadata="true" data-core-metadata="true"'
                links.append(f'<a href="{quote(path)}{tail}"{beside}>{wheel.filename}</a><br/>')
                self.put(path, wheel.data)
                with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
                    name = next(n for n in archive.namelist() if n.endswith("/METADATA"))
                    self.put(f"{path}.metadata", archive.read(name))
            body = "<!DOCTYPE html><html><body>" + "\n".join(links) + "<!--TIMESTAMP 1--></body>"
            self.put(f"{root}{project}/", body.encode(), "text/html")

    def put_releases(
        self, root: str, wheels: Sequence[Made], stale: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """As sgl-project and FlashInfer: HTML with whole links to releases, and old hashes."""
        for project in {wheel.project for wheel in wheels}:
            links = []
            for wheel in (each for each in wheels if each.project == project):
                address = f"{self.url}/releases{root}{quote(wheel.filename)}"
                links += [
                    f'<a href="{address}#sha256={digest}">{wheel.filename}</a><br>'
                    for digest in (*(stale or {}).get(wheel.filename, ()), wheel.sha256)
                ]
                self.put(f"/releases{root}{wheel.filename}", wheel.data)
            body = "<!DOCTYPE html>\n" + "\n".join(links)
            self.put(f"{root}{project}/", body.encode(), "text/html")


@contextmanager
def serving_site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def do_GET(self) -> None:
            path = unquote(self.path)
            site.asked.append(path)
            _, _, secret = self.headers.get("Authorization", "").partition(" ")
            if secret:
                site.credentials.add(base64.b64decode(secret).decode())
            if path not in site.answers:
                self._send(404, "text/plain", b"none")
                return
            kind, body = site.answers[path]
            wanted = self.headers.get("Range", "")
            if not wanted or path.startswith(site.without_ranges or ("\0",)):
                self._send(200, kind, body)
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(body) - int(last))
            end = min(len(body), int(last) + 1) if first and last else len(body)
            said = end - 1 - site.wrong_pieces
            self._send(206, kind, body[start:end], f"bytes {start}-{said}/{len(body)}")

        def do_HEAD(self) -> None:
            self.do_GET()

        def _send(self, status: int, kind: str, body: bytes, piece: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) + 9 * site.cut_short))
            self.close_connection = site.cut_short
            if piece:
                self.send_header("Content-Range", piece)
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
