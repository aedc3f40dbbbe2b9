"""What stands in the way of the installed components as such: images, linkage, versions, driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from alula.diagnosis.driver_gates import driver_gates
from alula.machine.capability import Capability, Loading
from alula.machine.components import Component
from alula.machine.environment import canonical
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.library import Library
from alula.machine.software import Software

_TRIO = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


def component_gates(machine: Machine, software: Software) -> tuple[Gate, ...]:
    """Every closed gate of the components on the visible GPUs; the open ones say nothing new."""
    return (
        *driver_gates(machine, software),
        *_device_code(machine, software),
        *_linkage(software),
        *_requirements(software),
        *_trio(software),
        *_toolkits(machine, software),
    )


def _device_code(machine: Machine, software: Software) -> Iterator[Gate]:
    for gpu in machine.capabilities():
        for component in software.components:
            for library in component.device_code():
                yield from device_code_gates(machine, component, library, gpu)


def device_code_gates(
    machine: Machine, component: Component, library: Library, gpu: Capability
) -> Iterator[Gate]:
    """A gate where nothing in a library is loaded on a GPU."""
    loading = library.loading(gpu, machine.driver.isa())
    if loading not in (Loading.NONE, Loading.PTX_TOO_NEW):
        return
    too_new = loading is Loading.PTX_TOO_NEW
    cuda = machine.driver.cuda_version()
    yield Gate(
        component=f"{component.name} {component.version}",
        feature=_short(library.path),
        layer=Layer.DRIVER if too_new else Layer.DEVICE_CODE,
        predicate=f"an image that the driver loads on {gpu}",
        observed=f"{_held(library)}; the driver is of CUDA {cuda[0]}.{cuda[1]}"
        if too_new and cuda
        else _held(library),
        verdict=GateVerdict.CLOSED,
        evidence=f"image: {library.path}",
        opened_in="a driver that knows this PTX" if too_new else "",
    )


def _held(library: Library) -> str:
    """What a library holds, in words: sm_80, sm_90a in 182 of 182."""
    total = sum(library.containers.values())
    counts = library.targets()
    if set(counts.values()) == {total}:
        return f"{', '.join(counts)} in all {total}"
    return f"{', '.join(f'{name} in {count}' for name, count in counts.items())} of {total}"


def _linkage(software: Software) -> Iterator[Gate]:
    for component in software.components:
        sonames = {
            name: each.library
            for each in component.missing
            for name in each.sonames
            if not each.is_plugin
        }
        if sonames:
            yield _missing(component, f"{', '.join(sorted(sonames))} to be found", sonames)
        of_torch = {name: each.library for each in component.missing for name in each.torch_symbols}
        if of_torch:
            yield _missing(component, f"torch to offer {_listed(of_torch)}", of_torch, "torch")
        of_nccl = {name: each.library for each in component.missing for name in each.nccl_symbols}
        if of_nccl:
            yield _missing(component, f"NCCL to offer {_listed(of_nccl)}", of_nccl, "NCCL")


def _missing(component: Component, predicate: str, found: dict[str, str], owner: str = "") -> Gate:
    libraries = sorted({_short(path) for path in found.values()})
    what = f"{len(found)} symbols" if len(found) > 1 else "1 symbol"
    nobody = f"{owner} does not offer {what}" if owner else "no package and no system folder has it"
    return Gate(
        component=f"{component.name} {component.version}",
        feature=", ".join(libraries),
        layer=Layer.LINKAGE,
        predicate=predicate,
        observed=nobody,
        verdict=GateVerdict.CLOSED,
        evidence=f"symbol: {sorted(found)[0]} of {sorted(found.values())[0]}"
        if owner
        else f"needed by {sorted(found.values())[0]}",
    )


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return ", ".join(ordered[:4]) + rest


def _requirements(software: Software) -> Iterator[Gate]:
    """Pins of the components that the environment does not keep."""
    absent: dict[str, list[str]] = {}
    for needed in software.requirements:
        requirement = _applying(needed.text, software.python)
        if requirement is None:
            continue
        name = canonical(requirement.name)
        have = software.packages.get(name)
        if have is None:
            absent.setdefault(needed.package, []).append(name)
        elif not _meets(requirement, have):
            pin = f"{name}{requirement.specifier}"
            yield _unkept(software, needed.package, name, pin, f"{name} {have}")
    for package, names in absent.items():
        plural = "packages" if len(names) > 1 else "package"
        observed = f"not installed: {_listed(names)}"
        wanted = f"{len(names)} {plural} that it requires"
        yield _unkept(software, package, "requirements", wanted, observed)


def _unkept(software: Software, package: str, feature: str, predicate: str, observed: str) -> Gate:
    named = f"{package} {software.packages[package]}"
    return Gate(
        component=named,
        feature=feature,
        layer=Layer.VERSION_CHECK,
        predicate=predicate,
        observed=observed,
        verdict=GateVerdict.CLOSED,
        evidence=f"METADATA of {named}",
    )


def _applying(text: str, python: str) -> Requirement | None:
    """A requirement that holds for the examined environment; None for any other."""
    try:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate(_markers(python))
    except (InvalidRequirement, ValueError):
        return None
    return requirement if applies else None


def _markers(python: str) -> dict[str, str]:
    """The markers of the examined environment, as far as it tells them."""
    found = {"extra": ""}
    if python:
        found["python_version"] = ".".join(python.split(".")[:2])
        found["python_full_version"] = python
    return found


def _meets(requirement: Requirement, have: str) -> bool:
    try:
        return requirement.specifier.contains(Version(have), prereleases=True)
    except InvalidVersion:
        return True


def _trio(software: Software) -> Iterator[Gate]:
    """FlashInfer refuses to start where its parts are not of one version."""
    found = {name: software.packages[name] for name in _TRIO if name in software.packages}
    plain = {name: version.partition("+")[0] for name, version in found.items()}
    if len(set(plain.values())) > 1:
        yield Gate(
            component="flashinfer-python",
            feature="flashinfer",
            layer=Layer.VERSION_CHECK,
            predicate="the parts of FlashInfer are of one version",
            observed=", ".join(f"{name} {version}" for name, version in found.items()),
            verdict=GateVerdict.CLOSED,
            evidence="METADATA of each; vllm#49804 shows the refusal",
        )


def _toolkits(machine: Machine, software: Software) -> Iterator[Gate]:
    """Compilers at run time whose toolkit does not know a visible GPU."""
    for gpu in machine.capabilities():
        for jit in software.jits:
            if jit.toolkit is None or (jit.name == "Triton" and _has_blackwell(software, gpu)):
                continue
            # Triton asks for the suffix from 9.0 on.
            suffix = "a" if jit.name.startswith("Triton") and gpu.major >= 9 else ""
            if jit.name == "Triton from 10.0 on" and gpu.major < 10:
                continue
            if jit.toolkit.knows(gpu, suffix) is False:
                yield Gate(
                    component=jit.name,
                    feature="compiling at run time",
                    layer=Layer.TOOLKIT,
                    predicate=f"ptxas knows sm_{gpu.arch}{suffix}",
                    observed=f"ptxas {jit.toolkit.version}, because {jit.because}",
                    verdict=GateVerdict.CLOSED,
                    evidence=f"image: {jit.toolkit.path}",
                )


def _has_blackwell(software: Software, gpu: Capability) -> bool:
    return gpu.major >= 10 and software.jit("Triton from 10.0 on") is not None


def _short(path: str) -> str:
    """A library as people call it: its folder where the name alone says little."""
    parts = Path(path).parts
    return "/".join(parts[-2:])
