"""Staged checks of any environment, from its files to its speed, each recorded.

    python3 -m alula.stack.probe [ENV] [--baseline ENV] [--json FILE]

runs where the command line of alula, with all that it needs, is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from alula.errors import AlulaError, UsageError
from alula.machine.environment import Environment, environment_at, own_environment
from alula.machine.facts import Machine
from alula.machine.observe import observe
from alula.machine.probing import check_idle, python_of
from alula.machine.software import Software, read_software
from alula.machine.source import is_file
from alula.models.progress import Progress, silent
from alula.stack.probe_children import Children, Python
from alula.stack.probe_gates import Retester, closed_gates
from alula.stack.probe_records import Check, ProbeReport, Result, Retest, Stage
from alula.stack.probe_static import check_files, check_static
from alula.stack.probe_tokens import (
    ROUNDS,
    Limits,
    Run,
    check_first,
    check_greedy,
    check_throughput,
    read_run,
)
from alula.stack.recorded import size_of

_NO_BASELINE = "no baseline was named"


@dataclass(frozen=True)
class Asked:
    """What is probed, against what."""

    environment: Path | None = None
    """None for the one that alula runs in."""
    baseline: Path | None = None
    workload: Path | None = None
    """A script that decodes with the environment's engine, and prints as `tokens_probe.py` does."""
    limits: Limits = field(default_factory=Limits)
    force: bool = False


def probe(
    asked: Asked,
    environ: Mapping[str, str],
    announce: Callable[[str], None] = lambda _: None,
    watch: Progress = silent,
) -> ProbeReport:
    """Run every stage that can be run here; the others are recorded with the reason.

    Raises UsageError for an environment or a workload that is none, and where somebody computes on
    the GPUs.
    """
    if asked.workload is not None and not is_file(asked.workload):
        raise UsageError(
            f"there is no workload {asked.workload}",
            "it is not a file",
            "name a script, or leave --workload out for alula's small decoder",
        )
    environment = environment_at(asked.environment) if asked.environment else own_environment()
    python = python_of(asked.environment) if asked.environment else Path(sys.executable)
    baseline = environment_at(asked.baseline) if asked.baseline else None
    machine = observe()
    check_idle(machine, asked.force)
    interpreter = Python(python, len(machine.visible()), environ, asked.workload)
    probing = _Probing(asked, environment, baseline, machine, interpreter, announce, watch)
    checks = tuple(probing.checks())
    gates = tuple(probing.gates())
    return ProbeReport(
        environment=str(environment.prefix),
        python=environment.python,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        checks=checks,
        baseline=str(baseline.prefix) if baseline else "",
        gpus=tuple(gpu.name for gpu in machine.visible()),
        driver=machine.driver.version,
        gates=gates,
        notes=(*environment.notes, *machine.notes),
    )


class _Probing:
    """One environment, stage by stage."""

    def __init__(
        self,
        asked: Asked,
        environment: Environment,
        baseline: Environment | None,
        machine: Machine,
        python: Python,
        announce: Callable[[str], None],
        watch: Progress,
    ) -> None:
        self.asked, self.environment, self.baseline = asked, environment, baseline
        self.machine, self.announce, self.watch = machine, announce, watch
        self.environ = python.environ
        self.children = Children(python)
        self.plain: list[Run] = []
        self.software = Software()

    def checks(self) -> Iterator[Check]:
        """All stages; where torch cannot be imported, those that need it are not run."""
        with self.watch("files", size_of(self.environment)) as task:
            yield from check_files(self.environment, task.advance)
        self.announce("static")
        self.software = read_software(self.environment, self.environ)
        yield from check_static(self.machine, self.environment, self.software)
        self.announce("import")
        imported = list(self.children.imports())
        yield from imported
        torch = next((check for check in imported if check.name == "torch"), None)
        if torch is None or torch.result is not Result.PASSED:
            why = "torch cannot be imported" if torch else "torch is not installed"
            for stage in list(Stage)[list(Stage).index(Stage.KERNEL) :]:
                yield Check(stage, "all of it", Result.NOT_RUN, why)
            return
        self.announce("kernel")
        yield from self.children.kernels()
        self.announce("collective")
        yield from self.children.collectives()
        yield from self._tokens()

    def _tokens(self) -> Iterator[Check]:
        self.announce("tokens")
        first = self.children.workload()
        yield check_first(first)
        self._keep(read_run(first.measured))
        if self.baseline is None or self.asked.baseline is None:
            yield Check(Stage.GREEDY, "the baseline's tokens", Result.NOT_RUN, _NO_BASELINE)
            yield Check(Stage.THROUGHPUT, "tokens a second", Result.NOT_RUN, _NO_BASELINE)
            return
        yield from self._against(self.asked.baseline)

    def _against(self, prefix: Path) -> Iterator[Check]:
        """Runs of both environments in turns, so that a machine that slows down slows both."""
        python = self.children.python
        old = Children(Python(python_of(prefix), python.gpus, python.environ, python.workload))
        theirs = list[Run | None]()
        for number in range(ROUNDS):
            self.announce(f"throughput, {number + 1} of {ROUNDS}")
            theirs.append(read_run(old.workload().measured))
            if number < ROUNDS - 1:
                self._keep(read_run(self.children.workload().measured))
        expected, found = theirs[0], next(iter(self.plain), None)
        if expected is None or found is None:
            who = "the baseline" if expected is None else "the environment"
            reason = f"the workload does not run in {who}"
            yield Check(Stage.GREEDY, "the baseline's tokens", Result.NOT_RUN, reason)
            yield Check(Stage.THROUGHPUT, "tokens a second", Result.NOT_RUN, reason)
            return
        yield check_greedy(expected, found, self.asked.limits)
        speeds = [[run.speeds for run in runs if run] for runs in (theirs, self.plain)]
        yield check_throughput(speeds[0], speeds[1], self.asked.limits)

    def _keep(self, run: Run | None) -> None:
        self.plain += [] if run is None else [run]

    def gates(self) -> Iterator[Retest]:
        """Those that are closed in the baseline, one at a time."""
        if self.baseline is None:
            return
        before = read_software(self.baseline, self.environ)
        with_feature = self.children.workload if self.asked.workload else None
        retester = Retester(
            self.machine,
            self.software,
            self.children.outcomes,
            self.plain,
            with_feature,
            self.asked.limits,
        )
        for gate in closed_gates(self.machine, before):
            self.announce(f"gate: {gate.component}, {gate.feature}")
            yield retester.try_again(gate)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module; 0 where nothing failed."""
    parser = argparse.ArgumentParser(prog="python3 -m alula.stack.probe")
    parser.add_argument("environment", nargs="?", type=Path, metavar="ENV")
    parser.add_argument("--baseline", type=Path, metavar="ENV")
    parser.add_argument("--workload", type=Path, metavar="SCRIPT")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    asked = Asked(given.environment, given.baseline, given.workload, force=given.force)
    try:
        report = probe(asked, os.environ, lambda stage: print(f"probing: {stage}", file=sys.stderr))
    except AlulaError as error:
        print(f"error: {error.what}\n  why: {error.why}\n  fix: {error.fix}", file=sys.stderr)
        return error.exit_code
    print(report.verdict())
    for check in report.checks:
        print(f"{check.result:8} {check.stage}: {check.name}  {check.reason}".rstrip())
    for gate in report.gates:
        print(f"{gate.verdict:8} gate: {gate.gate.component}, {gate.gate.feature}: {gate.reason}")
    if given.json:
        given.json.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    return int(report.result is Result.FAILED)


if __name__ == "__main__":
    sys.exit(main())
