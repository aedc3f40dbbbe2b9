"""Bugs that were found the hard way, told from the published wheels before anything is installed.

Wheels are downloaded, or taken from the folder that ALULA_WHEELS names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from alula.diagnosis.features import chain
from alula.machine.capability import Capability, Loading
from alula.machine.components import Component, read_components
from alula.machine.environment import environment_at
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.linkage import SystemLibraries
from alula.machine.software import read_software
from alula.machine.whatif import named
from environments import make_environment

pytestmark = pytest.mark.slow

Unpack = Callable[..., Path]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("ALULA_WHEELS")
    return Path(given) if given else tmp_path_factory.mktemp("wheels")


@pytest.fixture
def unpack(wheels: Path, tmp_path: Path) -> Unpack:
    """Unpack wheels into an environment, of large ones only the libraries."""

    def into(name: str, *pins: str) -> Path:
        site = make_environment(tmp_path / name)
        for pin in pins:
            with zipfile.ZipFile(wheel(wheels, pin)) as archive:
                archive.extractall(site, [m for m in archive.namelist() if _matters(m)])
        return tmp_path / name

    return into


def _matters(member: str) -> bool:
    return member.endswith((".py", ".cuh", "METADATA", "RECORD")) or ".so" in member


def wheel(folder: Path, pin: str) -> Path:
    pattern = f"{pin.replace('==', '-').replace('-', '_', pin.count('-'))}-*.whl"
    if not list(folder.glob(pattern)):
        platforms = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_31_x86_64")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, pin]
        command += ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
        command += [word for tag in platforms for word in ("--platform", tag)]
        command += [word for abi in ("cp312", "abi3", "none") for word in ("--abi", abi)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{pin} cannot be downloaded: {done.stderr.strip()[-200:]}")
    return next(folder.glob(pattern))


def component(prefix: Path, name: str) -> Component:
    found = read_components(environment_at(prefix), SystemLibraries(prefix / "no-system"))
    return next(each for each in found if each.name == name)


def test_sgl_kernel_has_nothing_for_12_1(unpack: Unpack) -> None:
    kernel = component(unpack("env", "sgl-kernel==0.3.21"), "sgl-kernel")
    (library,) = (each for each in kernel.libraries if "sm100/common_ops" in each.path)
    assert library.loadings(Capability(12, 1), (9, 1)) == {Loading.NONE: 74}
    assert library.loadings(Capability(12, 0), (9, 1)) == {Loading.RUNS: 74}


@pytest.mark.parametrize(("torch", "count"), [("2.9.1", 0), ("2.10.0", 2)])
def test_sgl_kernel_against_torch(unpack: Unpack, torch: str, count: int) -> None:
    prefix = unpack("env", "sgl-kernel==0.3.21", f"torch=={torch}")
    missing = component(prefix, "sgl-kernel").missing
    symbols = {symbol for each in missing for symbol in each.torch_symbols}
    assert len(symbols) == count
    assert all(symbol.startswith("_ZN3c10") for symbol in symbols)


def test_torch_2_11_against_an_older_nccl(unpack: Unpack) -> None:
    prefix = unpack("env", "torch==2.11.0", "nvidia-nccl-cu12==2.27.5")
    missing = component(prefix, "torch").missing
    assert "ncclAlltoAll" in {symbol for each in missing for symbol in each.nccl_symbols}


def fusion_gates(prefix: Path) -> dict[Layer, Gate]:
    software = read_software(environment_at(prefix), {"PATH": ""})
    gates = chain("flashinfer-allreduce-fusion", named("8x-rtx-pro-6000"), software)
    return {gate.layer: gate for gate in gates if gate.component.startswith("flashinfer-python")}


@pytest.mark.parametrize(
    ("version", "line", "verdict"),
    [
        ("0.6.4", 61, GateVerdict.CLOSED),
        ("0.6.16", 192, GateVerdict.CLOSED),
        ("0.6.17", 192, GateVerdict.OPEN),
    ],
)
def test_the_list_of_flashinfers_all_reduce(
    unpack: Unpack, version: str, line: int, verdict: GateVerdict
) -> None:
    gates = fusion_gates(unpack("env", f"flashinfer-python=={version}"))
    listed = gates[Layer.ALLOW_LIST]
    assert listed.evidence == f"flashinfer/jit/comm.py:{line}"
    assert listed.verdict is verdict
    assert listed.opened_in == ("flashinfer 0.6.17" if verdict is GateVerdict.CLOSED else "")
    assert gates[Layer.CPP_CHECK].verdict is verdict
