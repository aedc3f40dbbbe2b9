"""What no resolver checks of a set: one CUDA, the driver, images, linkage, files, start-up.

Each check says passed, failed or not checked, and what it looked at. What has not been looked into
is never counted as passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from alula.diagnosis.component_gates import component_gates
from alula.machine.gate import Gate
from alula.stack.binary_checks import compilers, driver, images, one_cuda, ptx, sonames, symbols
from alula.stack.findings import Finding, Scene, Verdict
from alula.stack.set_checks import disk, hashes, owned_twice, platform, requirements, start_up, trio

Check = Callable[[Scene, Iterable[Gate]], Iterator[Finding]]


def run_checks(scene: Scene) -> tuple[Finding, ...]:
    """Every check; each has at least one finding."""
    gates = component_gates(scene.machine, scene.picture.software)
    found: list[Finding] = []
    for check, run in _checks_of(scene).items():
        of_it = list(run(scene, gates))
        passed = all(finding.verdict is not Verdict.FAILED for finding in of_it)
        if passed and not of_it:
            of_it = [Finding(check, Verdict.PASSED, _WHEN_PASSED[check])]
        found += of_it
    return tuple(found)


def _checks_of(scene: Scene) -> dict[str, Check]:
    """All of them, or without those of binaries where none is loaded onto a GPU."""
    on_a_gpu = any(True for _ in scene.needed())
    return {name: run for name, run in _CHECKS.items() if on_a_gpu or run not in _OF_BINARIES}


_OF_BINARIES = (one_cuda, driver, images, ptx, sonames, symbols, compilers)
_CHECKS: dict[str, Check] = {
    "requirements kept": requirements,
    "one CUDA": one_cuda,
    "driver": driver,
    "an image for every GPU": images,
    "PTX within the driver": ptx,
    "sonames provided": sonames,
    "symbols of torch and NCCL": symbols,
    "compilers know the GPU": compilers,
    "no file owned twice": owned_twice,
    "FlashInfer's parts equal": trio,
    "start-up checks of the model": start_up,
    "glibc and Python tags": platform,
    "hashes": hashes,
    "disk space": disk,
}
_WHEN_PASSED = {
    "requirements kept": "every package has what it requires",
    "one CUDA": "all binaries that are loaded at start are for one CUDA",
    "driver": "it is new enough for the GPUs and for the CUDA of the set",
    "an image for every GPU": "each library that is loaded at start has one",
    "PTX within the driver": "no library is left with PTX that is too new",
    "sonames provided": "every library of CUDA and torch that is asked for is in the set",
    "symbols of torch and NCCL": "every symbol that is asked for is defined in the set",
    "compilers know the GPU": "ptxas of Triton and of the toolkit compile for it",
    "no file owned twice": "no two wheels bring one file with unlike content",
    "FlashInfer's parts equal": "they are of one version, or there is at most one",
    "start-up checks of the model": "none of those that alula knows refuses it",
    "glibc and Python tags": "every wheel is made for this platform and Python",
    "hashes": "every wheel has a sha256",
    "disk space": "there is room for the wheels and the environment",
}
