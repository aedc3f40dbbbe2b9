"""The load rules of device code."""

from __future__ import annotations

import pytest

from alula.errors import UsageError
from alula.machine.capability import Capability, Loading, best_loading, loading_of
from alula.machine.driver_versions import cuda_of_driver, parse_driver, ptx_isa_of_cuda
from alula.machine.target import Target

RUNS, JIT, NONE = Loading.RUNS, Loading.JIT, Loading.NONE


@pytest.mark.parametrize(
    ("target", "gpu", "verdict"),
    [
        ("sm_120", "12.0", RUNS),
        ("sm_120", "12.1", RUNS),
        ("sm_121", "12.0", NONE),
        ("sm_80", "8.9", RUNS),
        ("sm_80", "9.0", NONE),
        ("sm_90", "12.0", NONE),
        ("sm_80", "8.7", NONE),
        ("sm_87", "8.7", RUNS),
        ("sm_87", "8.9", NONE),
        ("sm_120a", "12.0", RUNS),
        ("sm_120a", "12.1", NONE),
        ("sm_120f", "12.1", RUNS),
        ("sm_100f", "10.3", RUNS),
        ("sm_103f", "10.0", NONE),
        ("sm_100f", "12.0", NONE),
        ("sm_100f", "10.1", NONE),
        ("compute_100f@8.8", "10.1", NONE),
        ("compute_120f@8.8", "12.0", JIT),
        ("compute_121f@8.8", "12.0", NONE),
        ("compute_80@8.8", "12.0", JIT),
        ("compute_120@8.8", "9.0", NONE),
        ("compute_90a@8.8", "12.0", NONE),
        ("compute_90a@8.8", "9.0", JIT),
        ("compute_120f@8.8", "12.1", JIT),
        ("lto_120", "12.0", NONE),
    ],
)
def test_load_rules(target: str, gpu: str, verdict: Loading) -> None:
    assert loading_of(Target.parse(target), Capability.parse(gpu), (9, 1)) is verdict


def test_ptx_is_held_against_the_driver() -> None:
    gpu = Capability(12, 0)
    of_vllm = Target.parse("compute_80@8.8")
    assert loading_of(of_vllm, gpu, ptx_isa_of_cuda((12, 8))) is Loading.PTX_TOO_NEW
    assert loading_of(of_vllm, gpu, ptx_isa_of_cuda((12, 9))) is JIT
    assert loading_of(of_vllm, gpu, None) is Loading.PTX_UNKNOWN


def test_a_container_takes_its_best_image() -> None:
    images = [Target.parse(text) for text in ("sm_90", "compute_80@8.8", "lto_120")]
    assert best_loading(images, Capability(12, 0), (9, 1)) is JIT
    assert best_loading([], Capability(12, 0), (9, 1)) is NONE


@pytest.mark.parametrize("text", ["sm_120a", "compute_80@8.8", "lto_90", "compute_120f@9.0"])
def test_targets_are_read_as_they_are_written(text: str) -> None:
    assert str(Target.parse(text)) == text


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("590.48.01", (13, 1)),
        ("570.26", (12, 8)),
        ("580.65.06", (13, 0)),
        ("470.57", (11, 4)),
        ("440.1", None),
    ],
)
def test_cuda_of_driver(driver: str, cuda: tuple[int, int] | None) -> None:
    assert cuda_of_driver(parse_driver(driver)) == cuda


@pytest.mark.parametrize(
    ("cuda", "isa"),
    [
        *(((11, 0), (7, 0)), ((11, 8), (7, 8)), ((11, 9), None), ((12, 0), (8, 0))),
        *(((12, 6), (8, 5)), ((12, 8), (8, 7)), ((12, 9), (8, 8)), ((13, 0), (9, 0))),
        ((14, 0), None),
    ],
)
def test_ptx_of_each_cuda(cuda: tuple[int, int], isa: tuple[int, int] | None) -> None:
    assert ptx_isa_of_cuda(cuda) == isa


@pytest.mark.parametrize("text", ["", "12", "sm_120", "12.0a", "-1.0", "12.00"])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(UsageError, match="compute capability"):
        Capability.parse(text)


@pytest.mark.parametrize("text", ["", "new", "12.8", "590..1", "590.48.01; rm"])
def test_what_is_no_driver(text: str) -> None:
    with pytest.raises(UsageError, match="driver version"):
        parse_driver(text)
