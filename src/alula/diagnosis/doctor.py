"""One look at a machine and an environment, and the gates that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from alula.diagnosis.component_gates import component_gates
from alula.diagnosis.features import chain, check_feature
from alula.diagnosis.probe_gates import import_gates, settled
from alula.errors import UsageError
from alula.machine.environment import environment_at, own_environment
from alula.machine.kernels import find_empty_kernels
from alula.machine.observe import observe
from alula.machine.probe_child import Outcome
from alula.machine.probing import check_idle, check_names, python_of, run_probes
from alula.machine.report import Report
from alula.machine.software import read_software
from alula.machine.whatif import WhatIf, resolve


@dataclass(frozen=True)
class Question:
    """What the doctor is asked."""

    features: Sequence[str] = ()
    environment: Path | None = None
    what_if: WhatIf = field(default_factory=WhatIf)
    probes: Sequence[str] = ()
    force: bool = False
    kernels: bool = False
    """Whether to look for kernels that were compiled to nothing, which takes a while."""


def examine(
    question: Question,
    environ: Mapping[str, str],
    cache: Path | None = None,
    probing: Callable[[str], None] = lambda _: None,
) -> Report:
    """Look, then judge; probes run last and only where they were asked for.

    `cache` is a file that scans are kept in, `probing` is told the name of each probe.

    Raises UsageError for a feature, a probe or an environment that is none, and for probes of a
    machine that is only asked about or whose GPUs are in use.
    """
    for feature in question.features:
        check_feature(feature)
    names = check_names(question.probes)
    prefix = question.environment
    environment = own_environment() if prefix is None else environment_at(prefix)
    machine = resolve(question.what_if, observe)
    python = None
    if names:
        _check_here(question.what_if)
        check_idle(machine, question.force)
        python = python_of(prefix or environment.prefix)
    software = read_software(environment, environ, cache)
    report = Report(
        machine,
        software,
        component_gates(machine, software),
        {feature: chain(feature, machine, software) for feature in question.features},
    )
    if question.kernels:
        empty = find_empty_kernels(software.components, machine.capabilities())
        report = replace(report, empty_kernels=empty)
    if python is None:
        return report
    outcomes: list[Outcome] = []
    for name in names:
        probing(name)
        outcomes += run_probes([name], python, len(machine.visible()), environ)
    return replace(
        report,
        gates=(*report.gates, *import_gates(outcomes)),
        features={name: settled(gates, outcomes) for name, gates in report.features.items()},
        probes=tuple(outcomes),
    )


def _check_here(what_if: WhatIf) -> None:
    if what_if.given:
        raise UsageError(
            "--probe runs on this machine alone",
            "--machine, --gpu, --driver and --links ask about another one",
            "leave out either of them",
        )
