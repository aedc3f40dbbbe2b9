"""Checks of a set as a whole: its requirements, files, parts, start-up, platform, room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from alula.cost.units import size
from alula.machine.gate import Gate, Layer
from alula.stack.findings import Finding, Scene, Verdict, left_over, owner_of, some
from alula.stack.picture import Chosen, Picture
from alula.stack.rules import StartUp, rules

_TRIO = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


def owned_twice(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """No two wheels bring one file with unlike content, which the second would overwrite."""
    finding = partial(Finding, "no file owned twice")
    pairs: dict[tuple[str, ...], list[str]] = {}
    for path, names in scene.picture.owned_twice.items():
        if left_over(path) is None:
            pairs.setdefault(names, []).append(path)
    for names, paths in pairs.items():
        rest = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        words = f"{' and '.join(names)} both bring {paths[-1]}{rest}"
        yield finding(Verdict.FAILED, words, names, paths[-1])
    if unread := [each.name for each in scene.picture.chosen.values() if each.paths is None]:
        yield finding(Verdict.NOT_CHECKED, f"the files of {some(unread)} were not listed")


def trio(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """FlashInfer's parts are of one version, as it asks of them."""
    found = [each for name in _TRIO if (each := scene.picture.of(name))]
    if len({each.file.version.public for each in found}) > 1:
        words = f"FlashInfer refuses to start with {', '.join(each.shown for each in found)}"
        about = tuple(each.name for each in found)
        yield Finding("FlashInfer's parts equal", Verdict.FAILED, words, about, "vllm#49804")


def start_up(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """What an engine checks when it starts the model, as far as alula knows it."""
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


def requirements(scene: Scene, gates: Iterable[Gate]) -> Iterator[Finding]:
    """The pins of the needed packages; a resolver has kept them, a hand-made set may not."""
    finding = partial(Finding, "requirements kept")
    for gate in gates:
        version = gate.layer is Layer.VERSION_CHECK and gate.evidence.startswith("METADATA of ")
        if version and gate.feature != "flashinfer" and gate.feature not in scene.overridden:
            words = f"{gate.component} requires {gate.predicate}: {gate.observed}"
            yield finding(Verdict.FAILED, words, (owner_of(gate), gate.feature), gate.evidence)


def hashes(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """Each wheel has a sha256."""
    for each in scene.picture.chosen.values():
        if each.file.sha256 is None and each.file.rivals:
            words = f"{each.file.filename} has none of the hashes that {each.file.index} states"
            yield Finding("hashes", Verdict.FAILED, words, (each.name,))
        elif each.file.sha256 is None:
            words = f"{each.file.index} states no hash for {each.file.filename}"
            yield Finding("hashes", Verdict.NOT_CHECKED, words, (each.name,))


def platform(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """Each wheel is made for this platform and Python."""
    for each in scene.picture.chosen.values():
        if scene.target.rank(each.file) is None:
            words = f"{each.file.filename} is not for {scene.target.platform}"
            name = "glibc and Python tags"
            yield Finding(
                name, Verdict.FAILED, f"{words} and Python {scene.target.python}", (each.name,)
            )


def disk(scene: Scene, _: Iterable[Gate]) -> Iterator[Finding]:
    """There is room for the wheels and the environment."""
    finding = partial(Finding, "disk space")
    unknown = [each.name for each in scene.picture.chosen.values() if each.file.size is None]
    needed = unpacked_bytes(scene.picture)
    if scene.free_bytes is None:
        words = f"about {size(needed)} are needed, on a machine that is only asked about"
        yield finding(Verdict.NOT_CHECKED, words)
    elif needed > scene.free_bytes:
        words = f"about {size(needed)} are needed, {size(scene.free_bytes)} are free"
        yield finding(Verdict.FAILED, words)
    if unknown:
        yield finding(Verdict.NOT_CHECKED, f"no index says the size of {some(unknown)}")


def unpacked_bytes(picture: Picture) -> int:
    """What the wheels and the environment take: CUDA's libraries pack to some half."""
    return sum(3 * (each.file.size or 0) for each in picture.chosen.values())
