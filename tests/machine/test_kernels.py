"""Kernels that have a body on one architecture and none on another."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.machine.capability import Capability
from alula.machine.components import read_components
from alula.machine.environment import environment_at
from alula.machine.kernels import EmptyKernels, find_empty_kernels
from alula.machine.linkage import SystemLibraries
from alula.machine.lz4 import unpack
from alula.machine.source import DamagedError
from elf_files import Part, write_container, write_elf, write_image, write_library
from environments import install, make_environment


def cubin(**kernels: int) -> bytes:
    """A cubin with kernels of so many bytes."""
    return write_elf([Part(f".text.{name}", b"\0" * size) for name, size in kernels.items()], 190)


def packed(data: bytes) -> bytes:
    """One LZ4 block of literals only."""
    rest = len(data) - 15
    lengths = bytes([255] * (rest // 255) + [rest % 255]) if rest >= 0 else b""
    return bytes([min(len(data), 15) << 4]) + lengths + data


def found(tmp_path: Path, *images: bytes, gpu: str = "12.0") -> tuple[EmptyKernels, ...]:
    site = make_environment(tmp_path)
    install(site, "ops", "1", {"ops/k.so": write_library(write_container(*images))})
    components = read_components(environment_at(tmp_path), SystemLibraries(tmp_path))
    return find_empty_kernels(components, [Capability.parse(gpu)])


def test_a_kernel_without_a_body_is_named(tmp_path: Path) -> None:
    (library,) = found(
        tmp_path,
        write_image(90, payload=cubin(lamport=2304, other=4096, small=300)),
        write_image(120, payload=cubin(lamport=256, other=4096, small=128)),
    )
    assert (library.kernels, library.of, library.images_not_read) == (("lamport",), 3, 0)


def test_compressed_images_are_unpacked(tmp_path: Path) -> None:
    hollow, full = cubin(lamport=128), cubin(lamport=2304)
    lz4 = bytearray(write_image(120, flags=0x2000, payload=packed(hollow)))
    lz4[56:64] = len(hollow).to_bytes(8, "little")
    (library,) = found(tmp_path, write_image(90, payload=full), bytes(lz4))
    assert library.kernels == ("lamport",)


def test_what_cannot_be_unpacked_is_counted(tmp_path: Path) -> None:
    (library,) = found(
        tmp_path,
        write_image(90, payload=cubin(k=2304)),
        write_image(120, flags=0x8000, payload=b"\x28\xb5\x2f\xfd"),
    )
    assert (library.kernels, library.images_not_read) == ((), 1)


def test_libraries_without_a_finding_are_not_named(tmp_path: Path) -> None:
    full = cubin(k=2304)
    assert found(tmp_path, write_image(90, payload=full), write_image(120, payload=full)) == ()


@given(st.binary(max_size=600))
def test_blocks_of_literals(data: bytes) -> None:
    assert unpack(packed(data), len(data)) == data


def test_matches_may_overlap_themselves() -> None:
    assert unpack(b"\x14a\x01\x00\x50bcdef", 14) == b"aaaaaaaaabcdef"


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_any_block_ends_within_its_size(data: bytes, size: int) -> None:
    with suppress(DamagedError):
        assert len(unpack(data, size)) == size


@pytest.mark.parametrize(
    "block", [b"\xf0\xff", b"\x10", b"\x10a\x01", b"\x10a\x05\x00", b"\x1fa\x01\x00\xff"]
)
def test_cut_blocks_and_matches_before_the_start(block: bytes) -> None:
    with pytest.raises(DamagedError):
        unpack(block, 100)
