"""What only running tells: each probe a child process of the environment, with limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from alula.machine.environment import resolved
from alula.machine.probe_child import Ending, Outcome
from alula.machine.probing import run_probe, run_probes, script_of
from alula.stack.probe_records import Check, Result, Stage

_SCRIPTS = Path(__file__).with_name("probes")
_SECONDS = {"cpu": 120.0, "gloo": 120.0, "collective": 240.0, "workload": 600.0}


@dataclass(frozen=True)
class Python:
    """An environment's interpreter, with the variables that it is used with."""

    path: Path
    gpus: int
    environ: Mapping[str, str]
    workload: Path | None = None
    """A script that decodes with the environment's own engine; None for the small decoder."""


@dataclass
class Children:
    """Runs probes in one environment, and keeps what they said for the gates that follow."""

    python: Python
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def imports(self) -> Iterator[Check]:
        """Each package that serves models, and which copies of libraries came with it."""
        (outcome,) = run_probes(["import"], self.python.path, 0, self.python.environ)
        for check in self._parts(Stage.IMPORT, "import", outcome):
            yield self._with_libraries(check, outcome) if check.name == "torch" else check

    def _with_libraries(self, check: Check, outcome: Outcome) -> Check:
        """Torch's check with the copies of CUDA's libraries that came with it."""
        loaded = [str(path) for path in outcome.measured.get("libraries", ())]
        prefix = resolved(self.python.path.parent.parent)
        outside = [path for path in loaded if prefix not in Path(path).parents]
        said = f"; from outside of the environment: {', '.join(outside)}" if outside else ""
        return replace(check, reason=check.reason + said, measured={"libraries": loaded})

    def kernels(self) -> Iterator[Check]:
        """A kernel of each component on each GPU; without a GPU torch's on the CPU."""
        if not self.python.gpus:
            yield from self._parts(Stage.KERNEL, "cpu", self._script("cpu"))
            reason = "no GPU is visible"
            yield Check(Stage.KERNEL, "kernels on a GPU", Result.NOT_RUN, reason)
            return
        (outcome,) = run_probes(["kernel"], self.python.path, self.python.gpus, self.python.environ)
        yield from self._parts(Stage.KERNEL, "kernel", outcome)

    def collectives(self) -> Iterator[Check]:
        """All-reduce: gloo between two processes, NCCL over the GPUs that are there."""
        yield from self._parts(Stage.COLLECTIVE, "gloo", self._script("gloo"))
        if self.python.gpus:
            outcome = self._run("collective", script_of("collective"))
            name = f"NCCL, {self.python.gpus} rank{'s' if self.python.gpus > 1 else ''}"
            yield self._whole(Stage.COLLECTIVE, name, "collective", outcome)
        if self.python.gpus < 2:
            reason = f"it needs two GPUs, and {self.python.gpus or 'none'} is visible"
            yield Check(Stage.COLLECTIVE, "NCCL between GPUs", Result.NOT_RUN, reason)
        else:
            yield from self._peers()

    def _peers(self) -> Iterator[Check]:
        (outcome,) = run_probes(["p2p"], self.python.path, self.python.gpus, self.python.environ)
        yield from self._parts(Stage.COLLECTIVE, "p2p", outcome)

    def workload(self, feature: str = "") -> Outcome:
        """One run of the workload, with one feature switched on or with none.

        The workload is told by the variable ALULA_FEATURE, and prints what the small decoder does.
        """
        script = self.python.workload
        environ = {**self.python.environ, "ALULA_FEATURE": feature}
        command = [script or _SCRIPTS / "tokens_probe.py"]
        seconds, alone = _SECONDS["workload"], script is None
        return run_probe("workload", command, seconds, self.python.path, environ, alone)

    def _script(self, name: str) -> Outcome:
        return self._run(name, _SCRIPTS / f"{name}_probe.py")

    def _run(self, name: str, script: Path) -> Outcome:
        return run_probe(name, [script], _SECONDS[name], self.python.path, self.python.environ)

    def _parts(self, stage: Stage, name: str, outcome: Outcome) -> Iterator[Check]:
        """A check for each part that a probe has tried, and one where it did not get so far."""
        self.outcomes[name] = outcome
        for part, wrong in outcome.parts.items():
            result = Result.FAILED if wrong else Result.PASSED
            said = wrong or str(outcome.measured.get(part, ""))
            yield Check(stage, part, result, " ".join(said.split()), outcome.seconds)
        told = any(outcome.parts.values())
        if outcome.ending is not Ending.PASSED and not told:
            yield self._whole(stage, f"{name} probe", name, outcome)
        elif not outcome.parts:
            reason = "there was nothing that this probe knows"
            yield Check(stage, f"{name} probe", Result.NOT_RUN, reason, outcome.seconds)

    def _whole(self, stage: Stage, title: str, name: str, outcome: Outcome) -> Check:
        self.outcomes[name] = outcome
        result = result_of(outcome)
        return Check(stage, title, result, said_by(outcome), outcome.seconds, outcome.measured)


def result_of(outcome: Outcome) -> Result:
    """Whether a child passed; one that hung or grew has failed."""
    if outcome.ending is Ending.NOT_RUN:
        return Result.NOT_RUN
    return Result.PASSED if outcome.ending is Ending.PASSED else Result.FAILED


def said_by(outcome: Outcome) -> str:
    """What a child found wrong, and how it ended where it did not end by itself."""
    how = {Ending.HUNG: "it hung", Ending.TOO_LARGE: "it grew too large"}.get(outcome.ending)
    left = f"{len(outcome.stuck)} of its processes could not be ended" if outcome.stuck else ""
    return " ".join("; ".join(filter(None, [how, *outcome.findings[:3], left])).split())
