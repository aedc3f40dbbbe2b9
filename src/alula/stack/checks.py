"""What no resolver checks of a set: one CUDA, the driver, images, linkage, files, start-up.

Each check says passed, failed or not checked, and what it looked at. What has not been looked into
is never counted as passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from alula.diagnosis.component_gates import component_gates
from alula.machine.driver_versions import MINIMUM_DRIVER, parse_driver
from alula.machine.facts import Machine
from alula.machine.gate import Gate, Layer
from alula.machine.software import Software
from alula.stack.catalog import Target
from alula.stack.picture import Chosen, Picture
from alula.stack.rules import LeftOver, Spared, StartUp, rules

_TRIO = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found."""

    check: str
    verdict: Verdict
    words: str
    about: tuple[str, ...] = ()
    """The packages that it is about; one of them has to be another for it to pass."""
    evidence: str = ""


@dataclass(frozen=True)
class Scene:
    """A set, and where it is to run."""

    picture: Picture
    machine: Machine
    target: Target
    architecture: str = ""
    """Of the wanted model, "" for none."""
    free_bytes: int | None = None
    """Room on the disk that the environment is built on."""
    overridden: frozenset[str] = frozenset()
    """Packages on which a pin is openly not kept."""

    def needed(self) -> Iterator[Chosen]:
        """The packages whose binaries are loaded when an engine starts."""
        for each in self.picture.chosen.values():
            if each.name in rules().needed:
                yield each

    def software(self) -> Software:
        """The set as the doctor sees it."""
        return self.picture.software()


def run_checks(scene: Scene) -> tuple[Finding, ...]:
    """Every check; each has at least one finding."""
    gates = component_gates(scene.machine, scene.software())
    found: list[Finding] = []
    for check, run in _CHECKS.items():
        of_it = list(run(scene, gates))
        passed = all(finding.verdict is not Verdict.FAILED for finding in of_it)
        if passed and not of_it:
            of_it = [Finding(check, Verdict.PASSED, _WHEN_PASSED[check])]
        found += of_it
    return tuple(found)


def risks(scene: Scene) -> Iterator[str]:
    """What the set goes without, in words: nothing that stands in the way of what is wanted."""
    yield from _other_cuda(scene)
    for gate in component_gates(scene.machine, scene.software()):
        if (spared := _spared(gate)) and gate.layer in (Layer.DEVICE_CODE, Layer.DRIVER):
            yield f"{gate.component} {gate.feature} has nothing to load here: {spared.without}"
    for path, names in scene.picture.owned_twice().items():
        if rule := _left_over(path):
            yield f"{' and '.join(names)} both bring {path}, which nothing loads ({rule.source})"
    for soname, names in scene.picture.of_the_system().items():
        yield f"{', '.join(names)} asks the system for {soname}"
    for each in scene.picture.chosen.values():
        if len(each.file.rivals) > 1:
            yield (
                f"{each.file.filename} is listed in {each.file.index} with "
                f"{len(each.file.rivals)} hashes: it was overwritten; only the newest is taken"
            )
        if each.metadata.version and Version(each.metadata.version) != each.file.version:
            yield (
                f"{each.file.filename} says {each.metadata.version} within: pip takes it by its "
                "address alone, and by name discards it for what another index has"
            )
        if each.file.yanked:
            yield f"{each.shown} was withdrawn from {each.file.index}"


def _other_cuda(scene: Scene) -> Iterator[str]:
    """Binaries for another CUDA that nothing wanted loads."""
    major = set_major(scene.picture)
    optional = {rule.package: rule for rule in rules().optional}
    for each in scene.picture.chosen.values():
        found = each.major()
        if major is None or found in (None, major) or each.name in rules().needed:
            continue
        label, source = each.variant()
        rule = optional.get(each.name)
        missing = sorted({name for lib in scene.picture.missing(each) for name in lib.sonames})
        why = f": {missing[0]} is in no package of the set" if missing else ""
        if rule is None:
            told = f"{each.shown}, which is for {label}, by {source}"
            yield f"nothing that is wanted loads {told}{why}"
        else:
            yield f"{rule.loaded_by} will fail{why} ({each.shown} is for {label}, by {source})"


def set_major(picture: Picture) -> int | None:
    """The CUDA of a set: that of its torch, else of the first needed package that has one."""
    torch = picture.of("torch")
    if torch is not None:
        return torch.major()
    majors = (each.major() for each in picture.chosen.values() if each.name in rules().needed)
    return next((major for major in majors if major), None)


def _one_cuda(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
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


def _driver(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "driver")
    for gate in gates:
        if gate.layer is Layer.DRIVER and gate.component == "driver":
            words = f"{gate.predicate}: {gate.observed}"
            yield finding(Verdict.FAILED, words, ("torch",), gate.evidence)
    major = set_major(scene.picture)
    if not scene.machine.driver.version:
        words = "no driver was seen or asked about"
        if major in MINIMUM_DRIVER:
            words += f"; this CUDA needs {'.'.join(map(str, MINIMUM_DRIVER[major]))}"
        yield finding(Verdict.NOT_CHECKED, words)
    elif major in MINIMUM_DRIVER and not any(gate.component == "driver" for gate in gates):
        have = parse_driver(scene.machine.driver.version)
        floor = MINIMUM_DRIVER[major]
        # A branch alone, as "580", stands for its newest driver.
        if have < floor[: len(have)]:
            words = f"CUDA {major} needs {'.'.join(map(str, floor))}"
            yield finding(Verdict.FAILED, f"{words}, and the driver is older", ("torch",))


def _images(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "an image for every GPU")
    for gate in gates:
        if gate.layer is Layer.DEVICE_CODE and not _spared(gate) and _is_needed(gate):
            words = f"{gate.component} {gate.feature} has none: {gate.predicate}; {gate.observed}"
            yield finding(Verdict.FAILED, words, (_owner(gate),), gate.evidence)
    if not scene.machine.capabilities():
        yield finding(Verdict.NOT_CHECKED, "no GPU was seen or asked about")
    yield from _not_looked_into(scene, "an image for every GPU")


def _ptx(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "PTX within the driver")
    for gate in gates:
        driver = gate.layer is Layer.DRIVER and gate.component != "driver"
        if driver and not _spared(gate) and _is_needed(gate):
            words = f"{gate.component} {gate.feature}: {gate.observed}"
            yield finding(Verdict.FAILED, words, (_owner(gate),), gate.evidence)
    if scene.machine.driver.isa() is None:
        yield finding(Verdict.NOT_CHECKED, "what PTX the driver compiles is not known")
    yield from _not_looked_into(scene, "PTX within the driver")


def _sonames(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "sonames provided")
    unlisted = [
        each for each in scene.picture.chosen.values() if each.is_binary and each.paths is None
    ]
    for each in scene.needed():
        for missing in scene.picture.missing(each):
            if missing.sonames and not missing.is_plugin and not _spared_path(each.name, missing):
                words = f"{each.shown} {missing.library} needs {', '.join(missing.sonames)}"
                verdict = Verdict.NOT_CHECKED if unlisted else Verdict.FAILED
                tail = (
                    f"; {len(unlisted)} wheels of the set were not listed"
                    if unlisted
                    else "; no package of the set has it"
                )
                yield finding(verdict, words + tail, (each.name,), missing.library)
    yield from _not_looked_into(scene, "sonames provided")


def _symbols(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "symbols of torch and NCCL")
    for each in scene.needed():
        for missing in scene.picture.missing(each):
            for owner, names in (("torch", missing.torch_symbols), ("NCCL", missing.nccl_symbols)):
                if names and not _spared_path(each.name, missing):
                    other = scene.picture.of("torch") if owner == "torch" else None
                    offered = other.shown if other else owner
                    words = (
                        f"{each.shown} {missing.library} asks for {len(names)} symbols that "
                        f"{offered} does not define, first {names[0]}"
                    )
                    about = (each.name, "torch") if owner == "torch" else ("torch",)
                    yield finding(Verdict.FAILED, words, about, f"symbol: {names[0]}")
    yield from _not_looked_into(scene, "symbols of torch and NCCL")


def _owned_twice(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "no file owned twice")
    pairs: dict[tuple[str, ...], list[str]] = {}
    for path, names in scene.picture.owned_twice().items():
        if _left_over(path) is None:
            pairs.setdefault(names, []).append(path)
    for names, paths in pairs.items():
        rest = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        words = f"{' and '.join(names)} both bring {paths[-1]}{rest}"
        yield finding(Verdict.FAILED, words, names, paths[-1])
    if unread := [each.name for each in scene.picture.chosen.values() if each.paths is None]:
        yield finding(Verdict.NOT_CHECKED, f"the files of {_some(unread)} were not listed")


def _left_over(path: str) -> LeftOver | None:
    """The rule by which nothing loads a file."""
    return next((rule for rule in rules().left_over if rule.covers(path)), None)


def _trio(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    found = [each for name in _TRIO if (each := scene.picture.of(name))]
    if len({each.file.version.public for each in found}) > 1:
        words = f"FlashInfer refuses to start with {', '.join(each.shown for each in found)}"
        about = tuple(each.name for each in found)
        yield Finding("FlashInfer's parts equal", Verdict.FAILED, words, about, "vllm#49804")


def _start_up(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "start-up checks of the model")
    if not scene.architecture:
        yield finding(Verdict.NOT_CHECKED, "no model was named")
        return
    for rule, where, each in start_up_refusals(scene.picture, scene.architecture):
        words = f"{rule.reason}; {scene.architecture} is one, and the set has {each.shown}"
        yield finding(Verdict.FAILED, words, (each.name,), f"{where}; {rule.source}")
    for engine in filter(None, map(scene.picture.of, ("sglang", "vllm"))):
        if engine.contents is None:
            yield finding(Verdict.NOT_CHECKED, f"{engine.shown} has not been looked into")


def start_up_refusals(picture: Picture, architecture: str) -> Iterator[tuple[StartUp, str, Chosen]]:
    """Rules that a set breaks for a model: the rule, its line, the package that breaks it."""
    for rule in rules().start_up:
        engine = picture.of(rule.package)
        contents = engine.contents if engine else None
        if contents is None or architecture not in contents.multimodal:
            continue
        text = next((each for each in contents.texts if each.name == rule.text), None)
        needs = Requirement(rule.with_)
        other = picture.of(needs.name)
        if text is None or other is None or not needs.specifier.contains(other.file.version.public):
            continue
        for name in rule.of:
            each = picture.of(name)
            if each and not SpecifierSet(rule.needs).contains(each.file.version):
                yield rule, text.where, each


def _compilers(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
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


def _requirements(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    """The pins of the needed packages; a resolver has kept them, a hand-made set may not."""
    finding = partial(Finding, "requirements kept")
    for gate in gates:
        version = gate.layer is Layer.VERSION_CHECK and gate.evidence.startswith("METADATA of ")
        if version and gate.feature != "flashinfer" and gate.feature not in scene.overridden:
            words = f"{gate.component} requires {gate.predicate}: {gate.observed}"
            yield finding(Verdict.FAILED, words, (_owner(gate), gate.feature), gate.evidence)


def _hashes(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    for each in scene.picture.chosen.values():
        if each.file.sha256 is None:
            words = f"{each.file.index} states no hash for {each.file.filename}"
            yield Finding("hashes", Verdict.NOT_CHECKED, words, (each.name,))


def _platform(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    for each in scene.picture.chosen.values():
        if scene.target.rank(each.file) is None:
            words = f"{each.file.filename} is not for {scene.target.platform}"
            name = "glibc and Python tags"
            yield Finding(
                name, Verdict.FAILED, f"{words} and Python {scene.target.python}", (each.name,)
            )


def _disk(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    finding = partial(Finding, "disk space")
    unknown = [each.name for each in scene.picture.chosen.values() if each.file.size is None]
    needed = unpacked_bytes(scene.picture)
    if scene.free_bytes is None:
        words = f"about {needed / 1e9:.1f} GB are needed, on a machine that is only asked about"
        yield finding(Verdict.NOT_CHECKED, words)
    elif needed > scene.free_bytes:
        words = f"about {needed / 1e9:.1f} GB are needed, {scene.free_bytes / 1e9:.1f} GB are free"
        yield finding(Verdict.FAILED, words)
    if unknown:
        yield finding(Verdict.NOT_CHECKED, f"no index says the size of {_some(unknown)}")


def unpacked_bytes(picture: Picture) -> int:
    """What the wheels and the environment take: CUDA's libraries pack to some half."""
    return sum(3 * (each.file.size or 0) for each in picture.chosen.values())


def _not_looked_into(scene: Scene, check: str) -> Iterator[Finding]:
    names = [each.name for each in scene.needed() if each.is_binary and each.contents is None]
    if names:
        words = f"nobody has looked into {_some(names)}"
        yield Finding(check, Verdict.NOT_CHECKED, words, tuple(names))


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown


def _spared(gate: Gate) -> Spared | None:
    """The rule by which an engine does without what a gate closes."""
    path = f"{gate.feature} {gate.evidence}"
    on = gate.predicate.rpartition(" ")[2]
    return next(
        (
            rule
            for rule in rules().spared
            if rule.package == _owner(gate) and rule.library in path and rule.on in ("", on)
        ),
        None,
    )


def _spared_path(package: str, missing: object) -> bool:
    path = str(getattr(missing, "library", ""))
    return any(
        rule.package == package and rule.library in path and not rule.on for rule in rules().spared
    )


def _is_needed(gate: Gate) -> bool:
    return _owner(gate) in rules().needed


def _owner(gate: Gate) -> str:
    return canonicalize_name(gate.component.partition(" ")[0])


_CHECKS: dict[str, Callable[[Scene, Iterable[Gate]], Iterator[Finding]]] = {
    "requirements kept": _requirements,
    "one CUDA": _one_cuda,
    "driver": _driver,
    "an image for every GPU": _images,
    "PTX within the driver": _ptx,
    "sonames provided": _sonames,
    "symbols of torch and NCCL": _symbols,
    "compilers know the GPU": _compilers,
    "no file owned twice": _owned_twice,
    "FlashInfer's parts equal": _trio,
    "start-up checks of the model": _start_up,
    "glibc and Python tags": _platform,
    "hashes": _hashes,
    "disk space": _disk,
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
    "start-up checks of the model": "no engine of the set refuses to start it",
    "glibc and Python tags": "every wheel is made for this platform and Python",
    "hashes": "every wheel has a sha256",
    "disk space": "there is room for the wheels and the environment",
}
