"""What files alone tell of an environment: that they are whole, and that they fit together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from alula.diagnosis.component_gates import component_gates
from alula.machine.capability import Loading
from alula.machine.components import Component
from alula.machine.environment import Environment
from alula.machine.facts import Machine
from alula.machine.gate import Gate, Layer
from alula.machine.linkage import shared_libraries
from alula.machine.software import Software
from alula.stack.patches import changed_on_purpose
from alula.stack.probe_records import Check, Result, Stage
from alula.stack.recorded import Differing, differing

_SHOWN = 3


def check_files(environment: Environment, read: Callable[[int], None]) -> Iterator[Check]:
    """Every file as its package installed it, and none of two packages."""
    purpose = changed_on_purpose(environment.prefix)
    changed = differing(environment, read)
    where = {each: os.path.relpath(each.path, environment.prefix) for each in changed}
    unlike = [each for each in changed if purpose.get(where[each], "-") != each.found]
    by_package: dict[str, list[Differing]] = {}
    for each in unlike:
        by_package.setdefault(each.distribution.name, []).append(each)
    for name, each_of in sorted(by_package.items()):
        said = [f"{e.file} {'differs' if e.found else 'is missing'}" for e in each_of[:_SHOWN]]
        more = f" and {len(each_of) - _SHOWN} more" if len(each_of) > _SHOWN else ""
        yield Check(Stage.FILES, f"RECORD of {name}", Result.FAILED, ", ".join(said) + more)
    yield from _recorded(environment, len(by_package), len(purpose))
    twice = environment.owned_twice()
    first = next(iter(twice.items()), None)
    told = f"{first[0]} is claimed by {' and '.join(first[1])}" if first else ""
    yield Check(Stage.FILES, "no file of two packages", _held(not twice), told)


def _recorded(environment: Environment, failed: int, purpose: int) -> Iterator[Check]:
    listed = [d for d in environment.distributions.values() if any(d.record.values())]
    without = sorted(
        key for key, each in environment.distributions.items() if not any(each.record.values())
    )
    if len(listed) > failed:
        patched = f"; {purpose} files changed on purpose" if purpose else ""
        reason = f"{len(listed) - failed} packages as installed{patched}"
        yield Check(Stage.FILES, "RECORD of the others", Result.PASSED, reason)
    if without:
        named = f"{', '.join(without[:_SHOWN])}{' …' if len(without) > _SHOWN else ''}"
        reason = f"{len(without)} packages list no hashes: {named}"
        yield Check(Stage.FILES, "RECORD of the rest", Result.NOT_RUN, reason)


def check_static(machine: Machine, environment: Environment, software: Software) -> Iterator[Check]:
    """Sonames, symbols, versions, and images for the GPUs that are there."""
    gates = component_gates(machine, software)
    for component in software.components:
        named = f"{component.name} {component.version}"
        mine = [gate for gate in gates if gate.component == named]
        broken = [gate for gate in mine if gate.layer is Layer.LINKAGE]
        if broken or shared_libraries(environment.distributions[component.name]):
            told = _told(broken)
            yield Check(Stage.STATIC, f"linkage of {named}", _held(not broken), told)
        yield from _images(machine, component)
    unmet = [gate for gate in gates if gate.layer is Layer.VERSION_CHECK]
    if software.components:
        told = _told(unmet)
        yield Check(Stage.STATIC, "requirements of the components", _held(not unmet), told)
    if machine.driver.version:
        old = [gate for gate in gates if gate.component.startswith("driver")]
        yield Check(Stage.STATIC, f"driver {machine.driver.version}", _held(not old), _told(old))


def _images(machine: Machine, component: Component) -> Iterator[Check]:
    held = component.device_code()
    if not held:
        return
    name = f"images of {component.name} {component.version}"
    if not machine.capabilities():
        yield Check(Stage.STATIC, name, Result.NOT_RUN, "no GPU is visible")
    isa = machine.driver.isa()
    for gpu in machine.capabilities():
        fits = [library for library in held if _loads(library.loading(gpu, isa))]
        lacking = sorted({Path(each.path).name for each in held if each not in fits})
        reason = f"{len(fits)} of {len(held)} libraries have one"
        without = f"; none in {', '.join(lacking[:_SHOWN])}" if lacking else ""
        yield Check(Stage.STATIC, f"{name} for {gpu}", _held(bool(fits)), reason + without)


def _loads(loading: Loading | None) -> bool:
    return loading in (Loading.RUNS, Loading.JIT, Loading.PTX_UNKNOWN)


def _told(gates: list[Gate]) -> str:
    return "; ".join(f"{gate.predicate}: {gate.observed}" for gate in gates[:_SHOWN])


def _held(holds: bool) -> Result:
    return Result.PASSED if holds else Result.FAILED
