"""Wanted lines come out of a log whatever its size and form, in bounded memory."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.diagnosis import stream
from alula.diagnosis.diagnose import diagnose
from alula.diagnosis.stream import Needles, wanted_lines
from alula.errors import UsageError

ERROR = Needles([b"rror", b"atal"], [b"alive"])
HOSTILE = (
    b"error ",
    b"error\r\n",
    b"\x00\xff",
    b"\x1b[0;",
    b"\x1b]",
    b"[2026-02-11 ",
    b"9, ",
    b"\n",
)
LINE = st.text(st.sampled_from("eraotlf \t"), max_size=30)


@given(st.lists(LINE, max_size=40))
@settings(deadline=None)
def test_the_lines_are_those_that_hold_a_needle(lines: list[str]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CHUNK", 64)  # lines across the borders of chunks
        path = Path(folder) / "x.log"
        path.write_text("\n".join(lines))
        found = [(line.number, line.text) for line in wanted_lines(path, ERROR)]
    wanted = [(n, text) for n, text in enumerate(lines, 1) if "rror" in text or "atal" in text]
    assert found == wanted


def test_of_signs_of_life_only_the_last_one_of_a_chunk_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("alive 1\nalive 2\nerror\nalive 3\n")
    assert [line.text for line in wanted_lines(path, ERROR)] == ["error", "alive 3"]


def test_a_line_of_many_megabytes_is_cut_around_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"a\n" + b"x" * 3_000_000 + b" fatal end " + b"y" * 3_000_000 + b"\nerror\n")
    found = list(wanted_lines(path, ERROR))
    assert [line.number for line in found] == [2, 3]
    assert "fatal end" in found[0].text
    assert len(found[0].text) < 5000


def filled(folder: Path, piece: bytes, size: int) -> Path:
    path = folder / "x.log"
    path.write_bytes(piece * (size // len(piece)))
    return path


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_bytes_cost_linear_time(piece: bytes, tmp_path: Path) -> None:
    path = filled(tmp_path, piece, 1_000_000)
    start = time.process_time()
    diagnose([path])
    assert time.process_time() - start < 10


@pytest.mark.parametrize("piece", [b"error ", b"\x1b]", b"nothing", b"nothing\n"])
def test_memory_does_not_grow_with_the_log(piece: bytes, tmp_path: Path) -> None:
    path = filled(tmp_path, piece, 8_000_000)
    tracemalloc.start()
    diagnose([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


def test_a_broken_archive_or_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    broken = tmp_path / "x.log.gz"
    broken.write_bytes(b"\x1f\x8b\x08\x00 not gzip at all")
    for path in (broken, tmp_path, tmp_path / "nothing.log"):
        with pytest.raises(UsageError) as refused:
            list(wanted_lines(path, ERROR))
        assert str(path) in refused.value.what


@pytest.mark.slow
def test_a_gigabyte_is_read_within_two_minutes_and_100_megabytes(tmp_path: Path) -> None:
    line = (
        b"[2026-02-11 10:00:00 TP%d] Decode batch. #running-req: 1, cuda graph: True, gen "
        b"throughput (token/s): 81.25, #queue-req: 0\n"
    )
    block = b"".join(line % (n % 8) for n in range(10_000))
    path = tmp_path / "x.log"
    with path.open("wb") as file:
        file.write(b"server_args=ServerArgs(\nThe server is fired up and ready to roll!\n")
        while file.tell() < 1_000_000_000:
            file.write(block)
        file.write(b"torch.OutOfMemoryError: CUDA out of memory.\n")
    tracemalloc.start()
    start = time.process_time()
    diagnosis = diagnose([path])
    spent, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "cuda-oom"
    assert spent < 120
    assert peak < 100e6


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"BZh9", "bzip2"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_a_log_packed_in_another_way_is_refused_by_name(
    tmp_path: Path, head: bytes, name: str
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(head + b"\x00" * 100)
    with pytest.raises(UsageError, match="cannot be read") as refused:
        list(wanted_lines(log, Needles([b"x"], [])))
    assert name in refused.value.why


@pytest.mark.parametrize("content", [bytes(range(256)) * 20, b"\x7fELF\x02\x01\x01" + bytes(9000)])
def test_a_file_without_text_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    for packed in (False, True):
        path = tmp_path / f"x.{packed}"
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(UsageError, match=f"{path.name} cannot be read"):
            list(wanted_lines(path, ERROR))


@pytest.mark.parametrize(
    "before",
    [b"", bytes(9000), b"\x1b[32m 10%\r 20%\x08\x07\r\n" * 50, "Größe\n".encode("latin-1") * 50],
)
def test_a_log_may_hold_what_terminals_and_cut_files_leave(before: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(before + b"\nerror 7\n")
    assert [line.text for line in wanted_lines(path, ERROR)] == ["error 7"]
