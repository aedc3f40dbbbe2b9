"""Files that no tool wrote, or that somebody wrote to do harm: read or left out, and soon."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import pytest

from alula.errors import UsageError
from alula.machine.allow_lists import scan_source
from alula.machine.environment import environment_at
from alula.machine.facts import Machine
from alula.machine.library import read_library
from alula.machine.linkage import shared_libraries
from alula.machine.records import from_json
from alula.machine.software import read_software
from alula.machine.toolkits import jits
from elf_files import write_container, write_image, write_library
from environments import install, make_environment


@pytest.mark.parametrize("line", ["bad\0name.so,,", f"{'x' * 200_000}.so,,", '"open,,'])
def test_a_damaged_line_of_a_record_costs_that_line_alone(tmp_path: Path, line: str) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.9.1", {"torch/lib.so": "x"})
    record = site / "torch-2.9.1.dist-info/RECORD"
    record.write_text(f"{line}\n{record.read_text()}")
    environment = environment_at(tmp_path)
    assert "torch/lib.so" in environment.distributions["torch"].files
    assert read_software(environment, {}).components[0].name == "torch"


def test_links_in_a_circle_are_no_libraries_and_no_compilers(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.9.1", {"torch/lib.so": "x"})
    (site / "torch/lib.so").unlink()
    (site / "torch/lib.so").symlink_to("lib.so")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").symlink_to("nvcc")
    (tmp_path / "round").symlink_to("round")
    environment = environment_at(tmp_path)
    assert read_software(environment, {}).component("torch") is not None
    for home in ("", "round"):
        found = jits(environment, (), {"CUDA_HOME": str(tmp_path / home)})
        assert found[0].toolkit is not None
        assert found[0].toolkit.version == ""


@pytest.mark.parametrize(
    "origin",
    [
        "[" * 100_000,
        json.dumps({"url": "file:///", "dir_info": {"editable": True}}),
        json.dumps({"url": "file://[::1", "dir_info": {"editable": True}}),
        json.dumps({"url": 5, "dir_info": {"editable": True}}),
        json.dumps({"url": "file:///a\0b", "dir_info": {"editable": True}}),
    ],
)
def test_an_origin_that_is_none_leaves_the_package_where_it_is(tmp_path: Path, origin: str) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.9.1")
    (site / "torch-2.9.1.dist-info/direct_url.json").write_text(origin)
    assert not environment_at(tmp_path).distributions["torch"].is_editable


def test_a_checkout_is_searched_without_its_hidden_folders(tmp_path: Path) -> None:
    site = make_environment(tmp_path / "env")
    checkout = tmp_path / "checkout"
    for name in ("build/kernels.so", ".git/objects.so"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("x")
    install(site, "mine", "1.0", editable=checkout)
    found = shared_libraries(environment_at(tmp_path / "env").distributions["mine"])
    assert found == [checkout / "build/kernels.so"]


def test_a_script_of_empty_lines_does_not_hold_the_doctor_up(tmp_path: Path) -> None:
    make_environment(tmp_path).joinpath("x.dist-info").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("#!/bin/sh\n" + "\n" * 4000 + "true")
    start = time.process_time()
    jits(environment_at(tmp_path), (), {})
    assert time.process_time() - start < 1


def test_folders_that_may_not_be_seen_hold_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(tmp_path).joinpath("x.dist-info").mkdir()
    seen = Path.stat

    def denied(path: Path, **options: bool) -> os.stat_result:
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied")
        return seen(path, **options)

    monkeypatch.setattr(Path, "stat", denied)
    closed = str(tmp_path / "closed")
    for variables in (
        {"PATH": closed},
        {"CUDA_HOME": closed, "LD_LIBRARY_PATH": closed},
        {"TRITON_PTXAS_PATH": f"{closed}/ptxas"},
    ):
        software = read_software(environment_at(tmp_path), variables)
        assert not [each for each in software.toolkits if closed in each.path]
    with pytest.raises(UsageError, match="there is no environment"):
        environment_at(Path(closed))


def test_a_soname_longer_than_any_file_is_missing(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    name = "lib" + "x" * 5000 + ".so"
    library = write_library(write_container(write_image(90)), needed=[name])
    install(site, "fast", "1", {"fast/ops.so": library})
    (component,) = read_software(environment_at(tmp_path), {}).components
    assert component.missing[0].sonames == (name,)


def test_sections_that_share_one_large_table_do_not_hold_the_doctor_up(tmp_path: Path) -> None:
    count, table = 20_000, 8 << 20
    start_of_header = struct.pack("<4sBBB9xHHI", b"\x7fELF", 2, 1, 1, 3, 62, 1)
    header = start_of_header + struct.pack("<QQQIHHHHHH", 0, 0, 64, 0, 64, 0, 0, 64, 0, 0xFFFF)
    first = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, count, 1, 0, 0, 0)
    strings = 64 + 64 * count
    names = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings, table, 0, 0, 0, 0)
    dynamic = struct.pack("<IIQQQQIIQQ", 0, 6, 0, 0, 64, 0, 1, 0, 0, 16)
    path = tmp_path / "hostile.so"
    path.write_bytes(header + first + names + dynamic * (count - 2) + bytes(table))
    start = time.process_time()
    library = read_library(path)
    assert library.unknown == ("its tables ask for the same bytes over and over",)
    assert time.process_time() - start < 5


def test_source_full_of_digits_does_not_hold_the_scan_up() -> None:
    start = time.process_time()
    assert scan_source("p", b"x = '" + b"c0cc5e" * 200_000 + b"'\n", "f.py") == []
    assert time.process_time() - start < 3


def test_lists_before_an_expression_that_is_too_deep_are_found() -> None:
    deep = "+".join(["1"] * 900)
    source = f"ok = major in [9, 10]\nx = {deep}\n".encode()
    assert [each.majors for each in scan_source("p", source, "f.py")] == [(9, 10)]


def test_a_record_without_a_field_it_must_have_names_the_field() -> None:
    with pytest.raises(ValueError, match=r"machine\.gpus\[0\]\.index is missing"):
        from_json(Machine, {"gpus": [{}]}, "machine")
