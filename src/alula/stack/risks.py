"""What a set goes without, in words: nothing that stands in the way of what is wanted."""

from __future__ import annotations

from collections.abc import Iterator

from alula.diagnosis.component_gates import component_gates
from alula.machine.gate import Layer
from alula.stack.findings import Scene, left_over, set_major, spared
from alula.stack.rules import rules


def risks(scene: Scene) -> Iterator[str]:
    """What the set goes without, in words: nothing that stands in the way of what is wanted."""
    yield from _other_cuda(scene)
    for gate in component_gates(scene.machine, scene.picture.software):
        if (rule := spared(gate)) and gate.layer in (Layer.DEVICE_CODE, Layer.DRIVER):
            yield f"{gate.component} {gate.feature} has nothing to load here: {rule.without}"
    for path, names in scene.picture.owned_twice.items():
        if found := left_over(path):
            yield f"{' and '.join(names)} both bring {path}, which nothing loads ({found.source})"
    for soname, names in scene.picture.of_the_system().items():
        yield f"{', '.join(names)} asks the system for {soname}"
    for each in scene.picture.chosen.values():
        if len(each.file.rivals) > 1:
            yield (
                f"{each.file.filename} is listed in {each.file.index} with "
                f"{len(each.file.rivals)} hashes: it was overwritten; only the newest is taken"
            )
        if each.inner_version:
            yield (
                f"{each.file.filename} says {each.inner_version} within: pip takes it by its "
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
