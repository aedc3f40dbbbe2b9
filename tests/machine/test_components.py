"""What components hold and lack, on files remade from the facts of real wheels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from alula.machine.capability import Capability, Loading
from alula.machine.components import Component, read_components
from alula.machine.environment import environment_at
from alula.machine.linkage import SystemLibraries
from alula.machine.software import read_software
from alula.machine.target import Kind, Target
from elf_files import Part, write_container, write_elf, write_image, write_library
from environments import install, make_environment

FACTS: dict[str, Any] = json.loads(
    Path(__file__).with_name("facts").joinpath("known_bugs.json").read_text()
)
_COMMON_OPS = "sgl_kernel/sm100/common_ops.abi3.so"


def remade(
    containers: Mapping[str, int],
    needed: Sequence[str] = (),
    undefined: Sequence[str] = (),
    defined: Sequence[str] = (),
) -> bytes:
    """A library with the images and symbols of a real one, and nothing else of it."""
    written = []
    for signature, count in containers.items():
        targets = [Target.parse(text) for text in signature.split()]
        images = [
            write_image(
                target.arch,
                target.suffix,
                kind=1 if target.kind is Kind.PTX else 2,
                isa=target.isa or (8, 8),
            )
            for target in targets
        ]
        written += [write_container(*images)] * count
    return write_library(*written, needed=needed, undefined=undefined, defined=defined)


def install_sgl_kernel(site: Path) -> None:
    files = {
        path: remade(facts["containers"], facts["needed"], facts["torch_symbols"])
        for path, facts in FACTS["sgl-kernel 0.3.21"].items()
    }
    install(site, "sgl-kernel", "0.3.21", files)


def install_torch(site: Path, version: str) -> None:
    """torch with the symbols that sgl-kernel asks for, less those that this version lacks."""
    asked = {s for facts in FACTS["sgl-kernel 0.3.21"].values() for s in facts["torch_symbols"]}
    offered = sorted(asked - set(FACTS["torch lacks"][version]))
    facts = FACTS.get(f"torch {version}", {"containers": {}, "nccl_symbols": []})
    install(
        site,
        "torch",
        version,
        {
            "torch/version.py": "cuda: Optional[str] = '12.8'\n",
            "torch/lib/libc10.so": remade({}, defined=offered),
            "torch/lib/libtorch_cuda.so": remade(
                facts["containers"], ["libnccl.so.2", "libcuda.so.1"], facts["nccl_symbols"]
            ),
        },
    )


def install_cuda_12(site: Path) -> None:
    asked = {n for facts in FACTS["sgl-kernel 0.3.21"].values() for n in facts["needed"]}
    files = {f"nvidia/lib/{name}": remade({}) for name in asked if "libc10.so" not in name}
    install(site, "nvidia-cuda-runtime-cu12", "12.8.90", files)
    offered = FACTS["nccl-cu12 2.27.5 offers"]
    nccl = {"nvidia/nccl/lib/libnccl.so.2": remade({}, defined=offered)}
    install(site, "nvidia-nccl-cu12", "2.27.5", nccl)


def components(prefix: Path) -> dict[str, Component]:
    found = read_components(environment_at(prefix), SystemLibraries(prefix / "no-system"))
    return {component.name: component for component in found}


def library_loading(component: Component, name: str, gpu: str) -> Mapping[Loading, int]:
    library = next(each for each in component.libraries if each.path.endswith(name))
    return library.loadings(Capability.parse(gpu), (9, 1))


def test_sgl_kernel_has_no_image_for_12_1(tmp_path: Path) -> None:
    install_sgl_kernel(make_environment(tmp_path))
    kernel = components(tmp_path)["sgl-kernel"]
    assert library_loading(kernel, _COMMON_OPS, "12.1") == {Loading.NONE: 74}
    assert library_loading(kernel, _COMMON_OPS, "12.0") == {Loading.RUNS: 74}
    assert library_loading(kernel, "flash_ops.abi3.so", "12.0") == {Loading.NONE: 182}


@pytest.mark.parametrize(("version", "count"), [("2.9.1", 0), ("2.10.0", 2), ("2.11.0", 2)])
def test_sgl_kernel_misses_symbols_of_newer_torch(tmp_path: Path, version: str, count: int) -> None:
    site = make_environment(tmp_path)
    install_sgl_kernel(site)
    install_torch(site, version)
    install_cuda_12(site)
    missing = components(tmp_path)["sgl-kernel"].missing
    symbols = {symbol for each in missing for symbol in each.torch_symbols}
    assert len(symbols) == count
    assert not any(each.sonames for each in missing if each.torch_symbols)
    if count:
        assert "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib" in symbols


def test_torch_2_11_misses_symbols_of_nccl_2_27_5(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install_torch(site, "2.11.0")
    install_cuda_12(site)
    (missing,) = components(tmp_path)["torch"].missing
    assert missing.nccl_symbols == ("ncclAlltoAll", "ncclDevCommCreate", "ncclDevCommDestroy")


def test_a_soname_of_another_cuda_is_missing(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(
        site, "fast", "1", {"fast/ops.so": remade({"sm_90": 1}, ["libcudart.so.12", "libm.so.6"])}
    )
    install(site, "nvidia-cuda-runtime", "13.0.88", {"nvidia/cu13/lib/libcudart.so.13": remade({})})
    found = components(tmp_path)["fast"]
    assert [each.sonames for each in found.missing] == [("libcudart.so.12",)]
    assert found.variant == "cu12"


def test_ld_library_path_offers_and_overrides(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "fast", "1", {"fast/ops.so": remade({"sm_90": 1}, ["libcudart.so.12"])})
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/libcudart.so.12").write_bytes(b"")
    software = read_software(environment_at(tmp_path), {"LD_LIBRARY_PATH": f"/no:{tmp_path}/cuda"})
    (fast,) = software.components
    assert fast.missing == ()
    assert "before the packages' own" in software.notes[0]


def test_a_soname_beside_the_library_or_on_its_path_is_found(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    library = write_library(
        needed=["libbeside.so", "libbelow.so"], runpath="$ORIGIN/libs", defined=["f"]
    )
    files = {"a/x.so": library, "a/libbeside.so": remade({}), "a/libs/libbelow.so": remade({})}
    install(site, "a", "1", files)
    assert "a" not in components(tmp_path)


def test_a_library_is_found_by_each_of_its_names(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    needed = ["libfast.so", "libfast.so.1"]
    install(
        site, "fast", "1", {"f/libfast.so.1.2": remade({"sm_90": 1}), "g/x.so": remade({}, needed)}
    )
    for link in needed:
        (site / "f" / link).symlink_to("libfast.so.1.2")
    record = site / "fast-1.dist-info/RECORD"
    record.write_text("f/libfast.so,,\nf/libfast.so.1,,\n" + record.read_text())
    fast = components(tmp_path)["fast"]
    assert fast.missing == ()
    assert len(fast.libraries) == 1


def test_a_symbol_that_a_library_of_its_own_defines_is_not_missing(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install_torch(site, "2.9.1")
    symbol = "_ZN3c105mine_Ev"
    asking = remade({"sm_90": 1}, ["libmine.so"], [symbol])
    install(site, "mine", "1", {"m/ops.so": asking, "m/libmine.so": remade({}, defined=[symbol])})
    assert components(tmp_path)["mine"].missing == ()


def test_weak_symbols_need_nobody(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install_torch(site, "2.9.1")
    library = write_library(write_container(write_image(90)), weak=["_ZN3c106hiddenEv"])
    install(site, "weak", "1", {"weak/ops.so": library})
    assert components(tmp_path)["weak"].missing == ()


def test_stubs_without_kernels_say_nothing_about_a_library(tmp_path: Path) -> None:
    stub = write_elf([Part(".nv.info", b"\0" * 8)], machine=190)
    kernel = write_elf([Part(".text.k", b"\0" * 8)], machine=190)
    site = make_environment(tmp_path)
    files = {
        "c/libstub.so": write_library(write_container(write_image(52, payload=stub))),
        "c/libfull.so": write_library(write_container(write_image(52, payload=kernel))),
        "c/libzstd.so": write_library(write_container(write_image(75, flags=0x8000))),
    }
    install(site, "nvidia-cufft-cu12", "11", files)
    held = {Path(lib.path).name: lib for lib in components(tmp_path)["nvidia-cufft-cu12"].libraries}
    assert held["libstub.so"].containers == {}
    assert "no kernel" in held["libstub.so"].unknown[0]
    assert held["libzstd.so"].containers == {}  # libcufft 12.0's only image, which runs on 9.0
    assert "packed in a way of its own" in held["libzstd.so"].unknown[0]
    assert held["libfull.so"].targets() == {"sm_52": 1}


def test_plugins_that_nothing_needs_are_told_from_libraries(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    files = {
        "n/libplugin.so.3": write_library(needed=["libmpi.so.40"]),
        "n/libmain.so.3": write_library(needed=["libmpi.so.40"], soname="libmain.so.3"),
        "n/ops.so": write_library(needed=["libmain.so.3", "libmpi.so.40"]),
    }
    install(site, "nvidia-nvshmem-cu12", "3", files)
    missing = components(tmp_path)["nvidia-nvshmem-cu12"].missing
    assert {Path(m.library).name for m in missing if m.is_plugin} == {"libplugin.so.3"}
    assert len(missing) == 3


def test_loose_cubins_are_added_up(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    cubins = {
        "f/a.cubin": write_elf([], machine=190, flags=0x6006402),
        "f/b.cubin": write_elf([], machine=190, flags=0x600640A),
        "f/c.cubin": write_elf([], machine=190, flags=0x5A0D5A),
        "f/d.cubin": b"not a cubin",
        "f/h.cubin": write_elf([], machine=190, flags=0x5A055A),
        "f/g.cubin": write_elf([], machine=190, flags=0x0502),
        "f/e.cubin": write_elf(
            [Part(".note.nv.tkinfo", b"ptxas\0-O3 -arch sm_100f \0", 7)],
            machine=190,
            flags=0x6006402,
        ),
    }
    install(site, "flashinfer-cubin", "0.6.4", cubins)
    found = components(tmp_path)["flashinfer-cubin"].cubins
    assert found is not None
    assert found.targets() == {"sm_90": 1, "sm_90a": 1, "sm_100": 1, "sm_100a": 1, "sm_100f": 1}
    assert found.unknown == ("2 of them could not be read",)


def test_damaged_libraries_are_shown_with_their_reason(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.9.1", {"torch/lib/libcut.so": remade({"sm_90": 3})[:300]})
    (library,) = components(tmp_path)["torch"].libraries
    assert library.containers == {}
    assert "do not lie within" in library.unknown[0]


@pytest.mark.parametrize(
    ("name", "version", "text", "variant"),
    [
        ("torch", "2.10.0+cu130", "", "cu130"),
        ("torch", "2.9.1", "cuda: Optional[str] = '12.8'\n", "cu128"),
        ("torch", "2.9.1", "cuda: Optional[str] = None\n", "cpu"),
        ("nvidia-nccl-cu13", "2.28.9", "", "cu13"),
        ("triton", "3.6.0", "", ""),
    ],
)
def test_what_a_package_was_built_for(
    tmp_path: Path, name: str, version: str, text: str, variant: str
) -> None:
    install(make_environment(tmp_path), name, version, {"torch/version.py": text})
    assert components(tmp_path)[name].variant == variant


def test_the_library_folder_of_conda_is_looked_into(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "fast", "1", {"fast/ops.so": remade({"sm_90": 1}, ["libcudart.so.99"])})
    (tmp_path / "lib/libcudart.so.99").touch()
    environment = environment_at(tmp_path)
    assert read_software(environment, {}).components[0].missing[0].sonames == ("libcudart.so.99",)
    (tmp_path / "conda-meta").mkdir()
    assert read_software(environment, {}).components[0].missing == ()
