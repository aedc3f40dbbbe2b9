"""Every gate that was closed in the baseline, tried again in an environment, one at a time.

What the files of the environment say comes first: a gate that they show closed is closed. One that
they show open is open only after its feature has run and has changed what is launched: an engine
may take the flag and skip the feature without a word, which is `noop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from alula.diagnosis.component_gates import component_gates
from alula.diagnosis.features import FEATURES, chain
from alula.diagnosis.probe_gates import settled
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.probe_child import Ending, Outcome
from alula.machine.software import Software
from alula.stack.probe_children import said_by
from alula.stack.probe_records import Reopened, Result, Retest
from alula.stack.probe_tokens import Limits, Run, check_greedy, read_run

_SILENT = {
    ("flashinfer-allreduce-fusion", "sglang", Layer.ALLOW_LIST): "SGLang's flag does nothing there",
    ("torch-symm-mem", "sglang", Layer.HARDWARE): "it is disabled where multicast_ptr is 0",
    ("torch-symm-mem", "vllm", Layer.HARDWARE): "it is disabled where multicast_ptr is 0",
    ("torch-symm-mem", "hardware", Layer.HARDWARE): "it is disabled where multicast_ptr is 0",
    ("custom-allreduce", "sglang", Layer.TOPOLOGY): "it is disabled with a line in the log",
    ("custom-allreduce", "vllm", Layer.TOPOLOGY): "it is disabled with a line in the log",
}
"""Gates at which an engine goes on without the feature. Sources: sglang 0.5.9, communicator.py and
torch_symm_mem.py; CustomAllreduce.__init__ of sglang and vllm."""


@dataclass
class Retester:
    """Tries gates in one environment; a feature is run once, alone."""

    machine: Machine
    software: Software
    outcomes: Mapping[str, Outcome]
    """Of the probes that have run: "import", "kernel", "p2p", "collective"."""
    plain: Sequence[Run]
    """The workload without any feature, as often as it ran."""
    run_with: Callable[[str], Outcome] | None
    """Runs the workload with one feature; None where the workload knows none."""
    limits: Limits
    ran: dict[str, tuple[Reopened, str]] = field(default_factory=dict)

    def try_again(self, gate: Gate) -> Retest:
        """One gate as it stands in the baseline."""
        now = self._now(gate)
        if now is not None and now.probe:
            now = settled([now], list(self.outcomes.values()))[0]
        if now is not None and now.verdict is GateVerdict.CLOSED:
            return Retest(gate, Reopened.CLOSED, f"{now.observed} ({now.evidence})")
        if gate.feature in FEATURES:
            return Retest(gate, *self._by_feature(gate, now))
        return Retest(gate, *self._by_package(gate))

    def _now(self, gate: Gate) -> Gate | None:
        """The same gate in this environment, None where there is none any more."""
        feature = gate.feature
        all_here = chain(feature, self.machine, self.software) if feature in FEATURES else ()
        here = (*all_here, *component_gates(self.machine, self.software))
        return next((each for each in here if _key(each) == _key(gate)), None)

    def _by_feature(self, gate: Gate, now: Gate | None) -> tuple[Reopened, str]:
        feature = gate.feature
        said = f"{now.observed} ({now.evidence})" if now else "it is no longer there"
        if self.run_with is not None:
            if feature not in self.ran:
                self.ran[feature] = self._run_feature(feature)
            verdict, reason = self.ran[feature]
            return verdict, f"{said}; {reason}"
        if behind := self._silent(feature):
            why = f"{behind.predicate}: {behind.observed} ({behind.evidence})"
            return Reopened.NOOP, f"{said}; but {behind.component} skips {feature}: {why}"
        return Reopened.NOT_RUN, f"{said}; no workload that can switch {feature} on was named"

    def _silent(self, feature: str) -> Gate | None:
        closed = (
            each
            for each in chain(feature, self.machine, self.software)
            if each.verdict is GateVerdict.CLOSED
        )
        return next(
            (g for g in closed if (feature, g.component.split(" ")[0], g.layer) in _SILENT), None
        )

    def _run_feature(self, feature: str) -> tuple[Reopened, str]:
        assert self.run_with is not None
        if not self.plain:
            return Reopened.NOT_RUN, "the workload does not run without it either"
        outcome = self.run_with(feature)
        run = read_run(outcome.measured)
        if outcome.ending is not Ending.PASSED or run is None:
            return Reopened.FAILED, said_by(outcome) or "the workload printed no tokens"
        return effect_of(self.plain, run, self.limits)

    def _by_package(self, gate: Gate) -> tuple[Reopened, str]:
        """A gate of a package as such: its import tells, and its kernel where it has one."""
        package = gate.component.split(" ")[0]
        module = {"flashinfer-python": "flashinfer"}.get(package, package.replace("-", "_"))
        tried = {
            part: wrong
            for name in ("import", "kernel")
            for part, wrong in self._parts(name).items()
            if part.split(" ")[0] == module
        }
        needs_kernel = gate.layer is Layer.DEVICE_CODE
        if needs_kernel and not any(" on " in part for part in tried):
            reason = f"nothing in its files closes it; no kernel of {package} was run on a GPU"
            return Reopened.NOT_RUN, reason
        if not tried:
            return Reopened.NOT_RUN, f"nothing in its files closes it; {package} was not run"
        wrong = next((f"{part}: {text}" for part, text in tried.items() if text), "")
        if wrong:
            return Reopened.FAILED, wrong
        return Reopened.OPEN, f"it ran: {', '.join(tried)}"

    def _parts(self, name: str) -> Mapping[str, str]:
        return self.outcomes[name].parts if name in self.outcomes else {}


def effect_of(plain: Sequence[Run], run: Run, limits: Limits) -> tuple[Reopened, str]:
    """What switching a feature on has changed: nothing, what is launched, or the tokens.

    A kernel whose count lies where plain runs have it says nothing: counts may vary by themselves.
    """
    same = check_greedy(plain[0], run, limits)
    if same.result is Result.FAILED:
        return Reopened.FAILED, f"with it {same.reason}"
    counted = [each.kernels for each in plain if each.kernels is not None]
    if not counted or run.kernels is None:
        return Reopened.NOT_RUN, "it ran, but the workload does not say which kernels it launched"
    changed = []
    for name in sorted({*run.kernels, *(name for kernels in counted for name in kernels)}):
        usual = [kernels.get(name, 0) for kernels in counted]
        if not min(usual) <= run.kernels.get(name, 0) <= max(usual):
            changed.append(name)
    if not changed:
        return Reopened.NOOP, "with it the very same kernels are launched: it was skipped"
    return Reopened.OPEN, f"{len(changed)} kernels differ with it ({changed[0]}), {same.reason}"


def closed_gates(machine: Machine, software: Software) -> Iterator[Gate]:
    """Every gate that the doctor finds closed, each once."""
    found: dict[tuple[str, ...], Gate] = {}
    for gate in component_gates(machine, software):
        found.setdefault(_key(gate), gate)
    for feature in FEATURES:
        for gate in chain(feature, machine, software):
            found.setdefault(_key(gate), gate)
    yield from (gate for gate in found.values() if gate.verdict is GateVerdict.CLOSED)


def _key(gate: Gate) -> tuple[str, ...]:
    """What makes a gate the same in another version of its package."""
    return gate.component.split(" ")[0], gate.feature, gate.layer, gate.predicate
