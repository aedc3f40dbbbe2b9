"""Toolkits and what each compiler at run time picks, from text in files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.machine.capability import Capability
from alula.machine.environment import environment_at
from alula.machine.toolkits import Jit, find_toolkits, jits, read_ptxas
from environments import install, make_environment


def ptxas(version: str, *architectures: str) -> bytes:
    """What alula reads of a ptxas: its version line and the names it knows."""
    release = ".".join(version.split(".")[:2])
    line = f"Cuda compilation tools, release {release}, V{version}\0".encode()
    names = b"".join(f"sm_{name}\0".encode() for name in architectures)
    return b"\x7fELF" + b"\0" * 5000 + line + names


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


OF_12_8 = ptxas("12.8.93", "50", "90", "90a", "100a", "120", "120a")
OF_13_0 = ptxas("13.0.88", "50", "75", "90a", "120", "120a", "120f", "121", "121a")


def picked(prefix: Path, environ: dict[str, str]) -> dict[str, Jit]:
    environment = environment_at(prefix)
    toolkits = find_toolkits(environment, environ, root=prefix / "system")
    return {jit.name: jit for jit in jits(environment, toolkits, environ)}


def test_version_and_architectures_of_a_ptxas(tmp_path: Path) -> None:
    toolkit = read_ptxas(put(tmp_path / "ptxas", OF_12_8))
    assert toolkit.version == "12.8.93"
    assert toolkit.release() == (12, 8)
    assert toolkit.knows(Capability(12, 0), "a") is True
    assert toolkit.knows(Capability(12, 1)) is False


def test_what_cuda_13_names_but_no_longer_compiles_for(tmp_path: Path) -> None:
    toolkit = read_ptxas(put(tmp_path / "ptxas", OF_13_0))
    assert toolkit.knows(Capability(5, 0)) is False
    assert toolkit.knows(Capability(7, 5)) is True


def test_names_over_the_border_of_two_pieces_are_read(tmp_path: Path) -> None:
    border = 8 << 20
    start = border - 40
    content = b"\0" * start + OF_12_8[5004:]
    assert read_ptxas(put(tmp_path / "ptxas", content)).version == "12.8.93"


@pytest.mark.parametrize("content", [None, b"", b"#!/bin/sh\nexec /elsewhere/ptxas\n"])
def test_what_is_no_ptxas_has_no_version(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        put(tmp_path / "ptxas", content)
    toolkit = read_ptxas(tmp_path / "ptxas")
    assert (toolkit.version, toolkit.release()) == ("", None)
    assert toolkit.knows(Capability(9, 0)) is None


def test_cuda_home_comes_before_an_nvcc_on_the_path(tmp_path: Path) -> None:
    make_environment(tmp_path)
    put(tmp_path / "old/bin/nvcc", b"")
    put(tmp_path / "old/bin/ptxas", OF_12_8)
    put(tmp_path / "new/bin/ptxas", OF_13_0)
    path = {"PATH": f"{tmp_path}/old/bin"}
    found = picked(tmp_path, path)["FlashInfer"]
    assert found.toolkit is not None
    assert found.toolkit.version == "12.8.93"
    assert "nvcc stands in" in found.because
    found = picked(tmp_path, {**path, "CUDA_HOME": f"{tmp_path}/new"})["FlashInfer"]
    assert found.toolkit is not None
    assert found.toolkit.version == "13.0.88"
    assert found.because == "CUDA_HOME is set"


def test_a_linked_nvcc_leads_to_its_toolkit(tmp_path: Path) -> None:
    make_environment(tmp_path)
    put(tmp_path / "cuda/bin/nvcc", b"")
    put(tmp_path / "cuda/bin/ptxas", OF_12_8)
    (tmp_path / "links/bin").mkdir(parents=True)
    (tmp_path / "links/bin/nvcc").symlink_to(tmp_path / "cuda/bin/nvcc")
    found = picked(tmp_path, {"PATH": f"{tmp_path}/links/bin"})["torch extensions"]
    assert found.toolkit is not None
    assert found.toolkit.version == "12.8.93"


def test_a_script_that_calls_nvcc_leads_to_its_toolkit(tmp_path: Path) -> None:
    make_environment(tmp_path)
    put(tmp_path / "cuda/bin/nvcc", b"")
    put(tmp_path / "cuda/bin/ptxas", OF_12_8)
    script = f'#!/bin/sh\n# a wrapper\n\nexec {tmp_path}/cuda/bin/nvcc "$@"\n'
    put(tmp_path / "wrapper/bin/nvcc", script.encode())
    found = picked(tmp_path, {"PATH": f"{tmp_path}/wrapper/bin"})["torch extensions"]
    assert found.toolkit is not None
    assert found.toolkit.version == "12.8.93"


def test_an_environment_has_its_own_tools_first(tmp_path: Path) -> None:
    make_environment(tmp_path)
    put(tmp_path / "bin/nvcc", b"")
    put(tmp_path / "bin/ptxas", OF_13_0)
    put(tmp_path / "old/bin/nvcc", OF_12_8)
    found = picked(tmp_path, {"PATH": f"{tmp_path}/old/bin"})["DeepGEMM"]
    assert found.toolkit is not None
    assert found.toolkit.version == "13.0.88"


def test_triton_brings_its_own_unless_told(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    tools = "triton/backends/nvidia/bin"
    files = {f"{tools}/ptxas": OF_12_8, f"{tools}/ptxas-blackwell": OF_13_0}
    install(site, "triton", "3.6.0", files)
    found = picked(tmp_path, {})
    both = [found[name].toolkit for name in ("Triton", "Triton from 10.0 on")]
    assert [toolkit and toolkit.version for toolkit in both] == ["12.8.93", "13.0.88"]
    own = put(tmp_path / "mine", OF_13_0)
    told = picked(tmp_path, {"TRITON_PTXAS_PATH": str(own)})["Triton"]
    assert told.because == "TRITON_PTXAS_PATH is set"


def test_toolkits_of_wheels_and_of_the_system_are_found_once(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    put(tmp_path / "system/usr/local/cuda-13.0/bin/ptxas", OF_13_0)
    (tmp_path / "system/usr/local/cuda").symlink_to("cuda-13.0")
    put(site / "nvidia/cuda_nvcc/bin/ptxas", OF_12_8)
    found = find_toolkits(environment_at(tmp_path), {}, tmp_path / "system")
    assert [toolkit.version for toolkit in found] == ["13.0.88", "12.8.93"]
