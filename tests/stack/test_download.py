"""Downloads that are not what was locked, from servers that do what servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from alula.errors import AlulaError, MachineError, PackageError
from alula.models.progress import silent
from alula.stack.download import check_hash, fetch, missing
from alula.stack.lock import Wheel
from alula.stack.places import Places
from made_wheels import make_wheel, wheel_of

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def _served(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/feather-1.0-py3-none-any.whl"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _sends(data: bytes, announced: int | None = None, status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if announced is not None:
            handler.send_header("Content-Length", str(announced))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(tmp_path / "stack")
    found.make()
    return found


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, files={"feather/data": bytes(range(256)) * 40})


def _refused(places: Places, wheel: Wheel, kind: type[AlulaError]) -> str:
    with pytest.raises(kind) as refusal:
        fetch(places, [wheel], silent)
    assert missing(places, [wheel])
    if kind is PackageError:
        assert [path.name for path in places.wheels.rglob("*") if path.stat().st_size > 4096] == []
    return str(refusal.value)


def test_what_was_fetched_is_not_fetched_again(places: Places, wheel: Path) -> None:
    with _served(_sends(wheel.read_bytes(), wheel.stat().st_size)) as url:
        found = wheel_of(wheel, url)
        assert fetch(places, [found], silent) == wheel.stat().st_size
    assert fetch(places, [found], silent) == 0
    kept = places.wheel(found.sha256, found.filename)
    assert kept.read_bytes() == wheel.read_bytes()
    check_hash(kept, found)


def test_a_file_without_announced_size_is_taken(places: Places, wheel: Path) -> None:
    with _served(_sends(wheel.read_bytes())) as url:
        found = wheel_of(wheel, url).model_copy(update={"size": None})
        assert fetch(places, [found], silent) == wheel.stat().st_size


def test_a_wrong_hash_is_refused(places: Places, wheel: Path) -> None:
    data = wheel.read_bytes()[:-1] + b"x"
    with _served(_sends(data, len(data))) as url:
        assert "sha256 is" in _refused(places, wheel_of(wheel, url), PackageError)


def test_a_truncated_download_is_refused(places: Places, wheel: Path) -> None:
    data = wheel.read_bytes()
    with _served(_sends(data[:100], len(data))) as url:
        told = _refused(places, wheel_of(wheel, url), MachineError)
    assert f"100 of {len(data)} bytes" in told
    with _served(_sends(data[:100])) as url:
        assert "100 of" in _refused(places, wheel_of(wheel, url), MachineError)


def test_what_broke_off_goes_on(places: Places, wheel: Path) -> None:
    data, asked = wheel.read_bytes(), list[str | None]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers["Range"])
        if len(asked) == 1:
            _sends(data[:1000], len(data))(handler)
        else:
            _sends(data[1000:], len(data) - 1000, 206)(handler)

    with _served(answer) as url:
        found = wheel_of(wheel, url)
        assert "broke off" in _refused(places, found, MachineError)
        assert fetch(places, [found], silent) == len(data) - 1000
    assert asked == [None, "bytes=1000-"]
    check_hash(places.wheel(found.sha256, found.filename), found)


def _broke_off(places: Places, wheel: Wheel, data: bytes) -> None:
    part = places.wheel(wheel.sha256, wheel.filename)
    part.parent.mkdir(parents=True)
    part.with_name(f".{part.name}.part").write_bytes(data)


def test_an_index_without_ranges_sends_it_again(places: Places, wheel: Path) -> None:
    data = wheel.read_bytes()
    with _served(_sends(data, len(data))) as url:
        found = wheel_of(wheel, url)
        _broke_off(places, found, data[:1000])
        assert fetch(places, [found], silent) == len(data)
    check_hash(places.wheel(found.sha256, found.filename), found)


def test_a_wrong_beginning_is_not_kept(places: Places, wheel: Path) -> None:
    data = wheel.read_bytes()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers["Range"] == "bytes=1000-":
            _sends(data[1000:], status=206)(handler)
        else:
            _sends(data, len(data))(handler)

    with _served(answer) as url:
        found = wheel_of(wheel, url)
        _broke_off(places, found, bytes(1000))
        assert "sha256 is" in _refused(places, found, PackageError)
        assert fetch(places, [found], silent) == len(data)


def test_more_than_there_is_is_asked_for_again(places: Places, wheel: Path) -> None:
    data = wheel.read_bytes()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers["Range"]:
            handler.send_error(416)
        else:
            _sends(data, len(data))(handler)

    with _served(answer) as url:
        found = wheel_of(wheel, url)
        _broke_off(places, found, data + b"more")
        assert fetch(places, [found], silent) == len(data)


def test_another_size_than_the_locks_is_refused(places: Places, wheel: Path) -> None:
    data = wheel.read_bytes() + b"more"
    with _served(_sends(data, len(data))) as url:
        assert "announces" in _refused(places, wheel_of(wheel, url), PackageError)
    with _served(_sends(data)) as url:
        assert f"{len(data)} bytes came" in _refused(places, wheel_of(wheel, url), PackageError)


def test_a_file_that_is_gone_is_named(places: Places, wheel: Path, tmp_path: Path) -> None:
    with _served(lambda handler: handler.send_error(404)) as url:
        assert "it answered 404" in _refused(places, wheel_of(wheel, url), PackageError)
    absent = wheel_of(wheel, (tmp_path / "gone.whl").as_uri())
    assert "no longer at its address" in _refused(places, absent, PackageError)


def test_an_index_that_is_down_is_named(places: Places, wheel: Path) -> None:
    with _served(_sends(b"")) as url:
        pass
    told = _refused(places, wheel_of(wheel, url), MachineError)
    assert "the index test does not give" in told


def test_an_index_that_is_overloaded_is_not_a_missing_file(places: Places, wheel: Path) -> None:
    with _served(lambda handler: handler.send_error(503)) as url:
        assert "it answered 503" in _refused(places, wheel_of(wheel, url), MachineError)


def test_what_was_whole_before_it_took_its_place_is_not_asked_for(
    places: Places, wheel: Path
) -> None:
    found = wheel_of(wheel, "http://127.0.0.1:9/")
    _broke_off(places, found, wheel.read_bytes())
    assert fetch(places, [found], silent) == 0
    assert missing(places, [found]) == []


def test_an_index_that_hangs_up_is_named(places: Places, wheel: Path) -> None:
    with _served(lambda _: None) as url:
        assert "does not give" in _refused(places, wheel_of(wheel, url), MachineError)


def test_a_silent_index_is_not_waited_for(
    places: Places, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alula.stack.download._SECONDS", 0.2)
    done = threading.Event()

    def silence(handler: BaseHTTPRequestHandler) -> None:
        _sends(b"PK", 5000)(handler)
        done.wait(5)

    with _served(silence) as url:
        found = wheel_of(wheel, url).model_copy(update={"size": None})
        assert "timed out" in _refused(places, found, MachineError)
        done.set()


def test_a_full_disk_is_told_before_the_download(
    places: Places, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    assert "no room on the disk" in _refused(places, wheel_of(wheel), MachineError)


def test_one_failure_leaves_what_was_complete(places: Places, tmp_path: Path) -> None:
    good = wheel_of(make_wheel(tmp_path, "quill"))
    bad = wheel_of(make_wheel(tmp_path), (tmp_path / "gone.whl").as_uri())
    with pytest.raises(PackageError):
        fetch(places, [good, bad], silent)
    assert bad in missing(places, [good, bad])
    fetch(places, [good], silent)
    assert missing(places, [good]) == []


def test_a_kept_file_that_was_damaged_is_removed(places: Places, wheel: Path) -> None:
    found = wheel_of(wheel)
    fetch(places, [found], silent)
    kept = places.wheel(found.sha256, found.filename)
    kept.write_bytes(b"bitrot")
    with pytest.raises(PackageError, match="damaged"):
        check_hash(kept, found)
    assert missing(places, [found]) == [found]
