"""The reader of device code: what it finds, and what it does with files that lie."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from alula.machine.elf import ElfFile, UnknownLayoutError
from alula.machine.fatbin import DeviceCode, read_device_code
from alula.machine.images import kernel_sizes
from alula.machine.source import BytesSource, DamagedError, FileSource
from alula.machine.target import Target
from elf_files import Part, write_container, write_elf, write_image, write_library


def device_code(data: bytes) -> DeviceCode:
    source = BytesSource(data)
    return read_device_code(source, ElfFile(source))


def targets(data: bytes) -> list[str]:
    return [str(image.target) for image in device_code(data).images]


LIBRARY = write_library(
    write_container(
        write_image(90, "a", payload=write_elf([Part(".text.kernel", b"\0" * 64)], 190)),
        write_image(120, "f"),
        write_image(80, kind=1),
    ),
    write_container(write_image(100, flags=0x8000), write_image(120, flags=0x2000)),
    relocatable=[write_container(write_image(75), write_image(120, kind=8))],
    needed=["libcudart.so.13"],
    undefined=["_ZN3c104cuda4pairEv"],
)


def test_every_image_of_both_sections_with_its_suffix() -> None:
    code = device_code(LIBRARY)
    assert code.unknown == ()
    assert code.containers == 3
    assert [(image.container, str(image.target)) for image in code.images] == [
        (0, "sm_90a"),
        (0, "sm_120f"),
        (0, "compute_80@8.8"),
        (1, "sm_100"),
        (1, "sm_120"),
        (2, "sm_75"),
        (2, "lto_120"),
    ]


def test_ptx_version_and_compression() -> None:
    images = device_code(LIBRARY).images
    assert images[2].target.isa == (8, 8)
    assert images[0].target.isa is None
    assert [image.compression for image in images[3:5]] == ["zstd", "lz4"]


def test_longer_image_headers_are_stepped_over() -> None:
    library = write_library(
        write_container(write_image(120, "a", extension=b"x" * 48), write_image(90))
    )
    assert targets(library) == ["sm_120a", "sm_90"]


def test_zeros_between_containers_are_padding() -> None:
    container = write_container(write_image(90))
    assert targets(write_library(container, b"\0" * 40, container)) == ["sm_90", "sm_90"]


def test_a_section_without_bytes_in_the_file_is_not_read() -> None:
    assert targets(write_elf([Part(".nv_fatbin", write_container(write_image(90)), 8)])) == []


@pytest.mark.parametrize(
    "spoilt",
    [
        b"\x51" + write_container(write_image(80))[1:],
        struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 60),
        write_container(write_image(80, kind=33)),
        write_container(write_image(7)),
        write_container(write_image(2_000_000)),
        write_container(write_image(80)[:-8]),
        write_container(write_image(80) + b"\1" * 8),
        b"\0" * (1 << 17) + b"\1" * 8,
    ],
    ids=[
        "magic",
        "version",
        "endless",
        "kind",
        "no architecture",
        "large architecture",
        "cut",
        "rest",
        "zeros",
    ],
)
def test_what_does_not_follow_the_layout_is_unknown_and_the_rest_is_kept(spoilt: bytes) -> None:
    code = device_code(write_library(write_container(write_image(90)), spoilt))
    assert len(code.unknown) == 1
    assert code.unknown[0].startswith(".nv_fatbin: ")
    assert str(code.images[0].target) == "sm_90"


def test_a_row_of_empty_containers_ends() -> None:
    empty = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)
    code = device_code(write_library(empty * 210_000))
    assert "more than 200000" in code.unknown[0]


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" + b"\0" * 100, LIBRARY[:40]])
def test_other_files_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(UnknownLayoutError):
        ElfFile(BytesSource(data))


def test_a_pipe_and_a_folder_do_not_hold_the_reader(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "libpipe.so")
    with FileSource(tmp_path / "libpipe.so") as source, pytest.raises(UnknownLayoutError):
        ElfFile(source)
    with pytest.raises(OSError, match="directory"):
        FileSource(tmp_path)


def read_all(data: bytes) -> None:
    """Everything the readers offer; only their own errors may come out."""
    with suppress(DamagedError, UnknownLayoutError):
        source = BytesSource(data)
        elf = ElfFile(source)
        code = read_device_code(source, elf)
        assert all(image.offset + image.size <= len(data) for image in code.images)
        assert all(Target.parse(str(image.target)) == image.target for image in code.images)
        for image in code.images[:50]:
            kernel_sizes(source, image)
        elf.linkage()
        elf.needed_symbols()
        elf.defined_symbols()


def mutated(rng: random.Random) -> bytes:
    data = bytearray(LIBRARY)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1]))
            case 2:
                data[at : at + 4] = struct.pack("<I", rng.randrange(2**32))
            case 3:
                del data[at:]
                data = data or bytearray(b"\0")
    return bytes(data)


def fuzz(cases: int, seed: int) -> float:
    rng = random.Random(seed)
    worst = 0.0
    for _ in range(cases):
        data = mutated(rng)
        start = time.perf_counter()
        read_all(data)
        worst = max(worst, time.perf_counter() - start)
    return worst


def test_truncated_files_never_crash() -> None:
    for length in range(len(LIBRARY)):
        read_all(LIBRARY[:length])


def test_hostile_files_never_crash_or_hang() -> None:
    assert fuzz(3_000, seed=1) < 1.0


@pytest.mark.slow
def test_a_hundred_thousand_hostile_files() -> None:
    assert fuzz(150_000, seed=2) < 1.0


def test_a_library_of_a_gigabyte_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    path, containers, images, payload = tmp_path / "libtorch_cuda.so", 400, 7, 384 << 10
    write_sparse(path, containers, images, payload)
    assert path.stat().st_size > 1 << 30
    tracemalloc.start()
    start = time.process_time()
    with FileSource(path) as source:
        code = read_device_code(source, ElfFile(source))
    took, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (code.containers, len(code.images), code.unknown) == (400, 2800, ())
    assert took < 0.5  # 0.06 s without the tracing, on a core of an AMD EPYC
    assert peak < 20 << 20


def write_sparse(path: Path, containers: int, images: int, payload: int) -> None:
    """A library whose images are holes in the file."""
    header = bytearray(write_image(120, payload=b"")[:64])
    header[8:16] = payload.to_bytes(8, "little")
    size = images * (64 + payload)
    whole = containers * (16 + size)
    elf = write_elf([Part(".nv_fatbin", b"")])
    table = int.from_bytes(elf[40:48], "little")
    section = bytearray(elf[table + 64 : table + 128])
    section[24:40] = (len(elf)).to_bytes(8, "little") + whole.to_bytes(8, "little")
    with path.open("wb") as file:
        file.write(elf[: table + 64] + section + elf[table + 128 :])
        for number in range(containers):
            start = len(elf) + number * (16 + size)
            file.seek(start)
            file.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, size))
            for image in range(images):
                file.seek(start + 16 + image * (64 + payload))
                file.write(header)
        file.truncate(len(elf) + whole)
