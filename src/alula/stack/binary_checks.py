"""Checks of what is inside the binaries of a set, and of what loads and compiles it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from alula.diagnosis.driver_gates import dotted
from alula.machine.driver_versions import MINIMUM_DRIVER, parse_driver
from alula.machine.gate import Gate, Layer
from alula.stack.findings import (
    Finding,
    Scene,
    Verdict,
    is_needed,
    not_looked_into,
    owner_of,
    set_major,
    some,
    spared,
    spared_path,
)


def one_cuda(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """All binaries that are loaded at start are for the CUDA of torch."""
    finding = partial(Finding, "one CUDA")
    major = set_major(scene.picture)
    torch = scene.picture.of("torch")
    for each in scene.needed():
        found = each.major()
        label, source = each.variant()
        if "/" in label:
            yield finding(
                Verdict.FAILED, f"{each.shown} needs both of {label}", (each.name,), source
            )
        elif found and major and found != major:
            other = f"{torch.shown} is for {torch.variant()[0]}" if torch else f"the set is {major}"
            yield finding(
                Verdict.FAILED,
                f"{each.shown} of {each.file.index} is for {label}, by {source}; {other}",
                (each.name, "torch"),
                source,
            )
        elif found is None and each.is_binary and each.contents is None:
            yield finding(
                Verdict.NOT_CHECKED, f"{each.shown}: nothing says its CUDA", (each.name,), source
            )


def driver(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    """The floor of the CUDA, and what each GPU needs."""
    finding = partial(Finding, "driver")
    for gate in gates:
        if gate.layer is Layer.DRIVER and gate.component == "driver":
            words = f"{gate.predicate}: {gate.observed}"
            yield finding(Verdict.FAILED, words, ("torch",), gate.evidence)
    major = set_major(scene.picture)
    if not scene.machine.driver.version:
        words = "no driver was seen or asked about"
        if major in MINIMUM_DRIVER:
            words += f"; this CUDA needs {dotted(MINIMUM_DRIVER[major])}"
        yield finding(Verdict.NOT_CHECKED, words)
    elif major in MINIMUM_DRIVER and not any(gate.component == "driver" for gate in gates):
        have = parse_driver(scene.machine.driver.version)
        floor = MINIMUM_DRIVER[major]
        # A branch alone, as "580", stands for its newest driver.
        if have < floor[: len(have)]:
            words = f"CUDA {major} needs {dotted(floor)}"
            yield finding(Verdict.FAILED, f"{words}, and the driver is older", ("torch",))


def images(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    """Each library has device code that every GPU runs."""
    finding = partial(Finding, "an image for every GPU")
    for gate in gates:
        if gate.layer is Layer.DEVICE_CODE and not spared(gate) and is_needed(gate):
            words = f"{gate.component} {gate.feature} has none: {gate.predicate}; {gate.observed}"
            yield finding(Verdict.FAILED, words, (owner_of(gate),), gate.evidence)
    if not scene.machine.capabilities():
        yield finding(Verdict.NOT_CHECKED, "no GPU was seen or asked about")
    yield from not_looked_into(scene, "an image for every GPU")


def ptx(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    """No library is left with PTX that the driver does not compile."""
    finding = partial(Finding, "PTX within the driver")
    for gate in gates:
        driver = gate.layer is Layer.DRIVER and gate.component != "driver"
        if driver and not spared(gate) and is_needed(gate):
            words = f"{gate.component} {gate.feature}: {gate.observed}"
            yield finding(Verdict.FAILED, words, (owner_of(gate),), gate.evidence)
    if scene.machine.driver.isa() is None:
        yield finding(Verdict.NOT_CHECKED, "what PTX the driver compiles is not known")
    yield from not_looked_into(scene, "PTX within the driver")


def sonames(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """Each library of CUDA and torch that is asked for is in the set."""
    finding = partial(Finding, "sonames provided")
    unlisted = [
        each for each in scene.picture.chosen.values() if each.is_binary and each.paths is None
    ]
    for each in scene.needed():
        for missing in scene.picture.missing(each):
            if missing.sonames and not missing.is_plugin and not spared_path(each.name, missing):
                words = f"{each.shown} {missing.library} needs {some(list(missing.sonames))}"
                verdict = Verdict.NOT_CHECKED if unlisted else Verdict.FAILED
                tail = (
                    f"; {len(unlisted)} wheels of the set were not listed"
                    if unlisted
                    else "; no package of the set has it"
                )
                yield finding(verdict, words + tail, (each.name,), missing.library)
    yield from not_looked_into(scene, "sonames provided")


def symbols(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """Each symbol that is asked of torch and NCCL is defined there."""
    finding = partial(Finding, "symbols of torch and NCCL")
    for each in scene.needed():
        for missing in scene.picture.missing(each):
            for owner, names in (("torch", missing.torch_symbols), ("NCCL", missing.nccl_symbols)):
                if names and not spared_path(each.name, missing):
                    other = scene.picture.of("torch") if owner == "torch" else None
                    offered = other.shown if other else owner
                    words = (
                        f"{each.shown} {missing.library} asks for {len(names)} symbols that "
                        f"{offered} does not define, first {names[0]}"
                    )
                    about = (each.name, "torch") if owner == "torch" else ("torch",)
                    yield finding(Verdict.FAILED, words, about, f"symbol: {names[0]}")
    yield from not_looked_into(scene, "symbols of torch and NCCL")


def compilers(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    """Triton's and the toolkit's ptxas compile for every GPU."""
    for gate in gates:
        if gate.layer is Layer.TOOLKIT:
            words = f"{gate.component}: {gate.predicate}, and it has {gate.observed}"
            about = ("triton",) if gate.component.startswith("Triton") else ()
            name = "compilers know the GPU"
            yield Finding(name, Verdict.FAILED, words, about, gate.evidence)
    triton = scene.picture.of("triton")
    if triton is not None and triton.contents is None:
        words = f"nobody has looked into {triton.shown}"
        yield Finding("compilers know the GPU", Verdict.NOT_CHECKED, words, ("triton",))
    toolkit = scene.picture.toolkit
    if toolkit is not None and not toolkit.architectures:
        words = f"what ptxas {toolkit.version} compiles for has not been read"
        yield Finding("compilers know the GPU", Verdict.NOT_CHECKED, words)
