"""Lists of architectures in source text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alula.machine.allow_lists import AllowList, scan_file, scan_source
from alula.machine.capability import Capability
from alula.machine.scan_cache import ScanCache

GPU = Capability(12, 0)


def lists(source: str) -> list[AllowList]:
    return scan_source("p", source.encode(), "p/f.py")


@pytest.mark.parametrize(
    ("source", "majors", "architectures"),
    [
        ("def gen():\n  flags(supported_major_versions=[9, 10])", (9, 10), ()),
        ("@supported_compute_capability([90, 100, 103])\ndef f(): ...", (), (90, 100, 103)),
        ("SYMM_MAX_SIZES = {9: {2: 64}, 10: {2: 64}}", (9, 10), ()),
        ('SYMM_MAX_SIZES: dict = {"9.0": 1, "10.0": 2}', (), (90, 100)),
        ("FUSION_MAX_SIZE_MB = {90: {}, 100: {}}", (), (90, 100)),
        ("arch_map = {(9, 0): 'h', (10, 0): 'b'}", (), (90, 100)),
        ("ok = is_sm90_supported() or is_sm100_supported()", (9, 10), ()),
        ("ok = (_is_sm90_supported or _is_sm100_supported) and x", (9, 10), ()),
        ("use = is_sm100_supported() and fast", (10,), ()),
        ("if _is_sm90_supported: pass", (9,), ()),
        ("if platform.is_device_capability_family(100): pass", (10,), ()),
        ("if platform.is_device_capability((9, 0)): pass", (), (90,)),
        ("def f(c):\n  return c.major in (9, 10)", (9, 10), ()),
        ("if device_capability[0] not in [9, 10]: pass", (9, 10), ()),
    ],
)
def test_every_form_of_a_list(
    source: str, majors: tuple[int, ...], architectures: tuple[int, ...]
) -> None:
    (found,) = lists(source)
    assert (found.majors, found.architectures) == (majors, architectures)
    assert not found.allows(GPU)
    assert found.allows(Capability(9, 0)) or found.allows(Capability(10, 0))


def test_a_list_that_lets_the_gpu_in() -> None:
    (found,) = lists("flags(supported_major_versions=[9, 10, 12])")
    assert found.allows(GPU)


def test_where_a_list_stands() -> None:
    (found,) = lists(
        "class A:\n  def gen(self):\n    f(\n      supported_major_versions=[9],\n    )"
    )
    assert (found.where, found.owner) == ("p/f.py:4", "A.gen")
    assert found.text == "supported_major_versions=[9]"


@pytest.mark.parametrize(
    "source",
    [
        "f(supported_major_versions=None)",
        "_is_sm90_supported = is_cuda() and is_sm90_supported()",
        "from utils import is_sm90_supported",
        "if platform.has_device_capability(90): pass",
        "if is_sm90_supported(device): pass",
        "f(supported_major_versions=majors)",
        "MAX_SIZES = {2: 64, 4: 64}",
        "BATCH = {9: 1, 10: 2}",
        "if world_size in (9, 10): pass",
        "if major in (9, 1000): pass",
        "MAX_SIZES = {**other, 9: 1}",
        "MAX_SIZES = {True: 1}",
        "def broken(:\n  supported_major_versions=[9]",
        "x = '\0' # supported_major_versions",
    ],
)
def test_what_is_no_list(source: str) -> None:
    assert lists(source) == []


def test_deeply_nested_source_does_not_end_the_scan() -> None:
    assert lists("supported_major = " + "(" * 5_000 + ")" * 5_000) == []


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    source, kept = tmp_path / "gate.py", tmp_path / "scans.json"
    reads = []

    def look() -> list[AllowList]:
        cache = ScanCache(kept)

        def read() -> list[AllowList]:
            reads.append(1)
            return scan_file("p", source, "gate.py")

        found = cache.lists(source, read)
        cache.save()
        return found

    source.write_text("f(supported_major_versions=[9, 10])\n")
    assert look() == look()
    assert len(reads) == 1
    source.write_text("f(supported_major_versions=[9, 10, 12])\n")
    assert look()[0].majors == (9, 10, 12)
    assert len(reads) == 2


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"format": 2, "files": {"/x": 3}}', '{"format": 2, "files": []}']
)
def test_a_damaged_cache_is_done_without(tmp_path: Path, damage: str) -> None:
    source, kept = tmp_path / "gate.py", tmp_path / "scans.json"
    source.write_text("f(supported_major_versions=[9])\n")
    kept.write_text(damage)
    cache = ScanCache(kept)
    assert len(cache.lists(source, lambda: scan_file("p", source, "gate.py"))) == 1
    cache.save()
    assert json.loads(kept.read_text())["format"] == 2
