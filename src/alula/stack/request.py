"""What a search is asked, and what came of each CUDA that it tried."""

from __future__ import annotations

from dataclasses import dataclass

from alula.machine.facts import Machine
from alula.machine.software import Software
from alula.machine.toolkits import Toolkit as Found
from alula.stack.conflict import Chain
from alula.stack.findings import Finding, Verdict
from alula.stack.lock import Override
from alula.stack.picture import Picture
from alula.stack.toolkit import Choice, Release


@dataclass(frozen=True)
class Request:
    """What is wanted, and where it is to run."""

    wanted: tuple[str, ...]
    machine: Machine
    architecture: str = ""
    """Of the model, "" for none."""
    cuda: Release | None = None
    """The CUDA that is asked for; None leaves the choice."""
    baseline: Software | None = None
    built: tuple[str, ...] = ()
    """Packages of the baseline that were built on its machine."""
    folders: tuple[Found, ...] = ()
    """Toolkits of this machine."""
    free_bytes: int | None = None


@dataclass(frozen=True)
class Attempt:
    """What came of one CUDA."""

    cuda: str
    """The label of its indexes; "" for the general ones alone."""
    picture: Picture | None = None
    choice: Choice | None = None
    findings: tuple[Finding, ...] = ()
    overrides: tuple[Override, ...] = ()
    chains: tuple[Chain, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""
    """Why it was not tried."""
    ruled_out: tuple[tuple[str, str, str], ...] = ()
    """Package, version, and what a check found of it."""

    @property
    def holds(self) -> bool:
        """Whether it is a set of which no check failed."""
        failed = any(finding.verdict is Verdict.FAILED for finding in self.findings)
        return self.picture is not None and not failed

    def reason(self) -> str:
        """Why it is not the plan, in words."""
        if self.skipped:
            return self.skipped
        if self.chains:
            return "; ".join(self.chains[0].words)
        failed = [each.words for each in self.findings if each.verdict is Verdict.FAILED]
        return "; ".join(failed[:3])
