"""Changes and facts close by: a smaller step that opens the same, facts that turn the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from packaging.version import Version

from alula.assess.change import Target
from alula.assess.opening import Opening, facts_after, open_gates
from alula.assess.situation import Situation
from alula.diagnosis.chains import chains
from alula.diagnosis.changes import Change
from alula.diagnosis.facts import Condition, Facts
from alula.machine.gate import Gate


def smaller_step(target: Target, situation: Situation, opening: Opening) -> Change | None:
    """The oldest toolkit that opens the same gates; None where none is older, or none is opened."""
    cuda = next((each for each in target.changes if each.component == "cuda"), None)
    if cuda is None or not opening.opened:
        return None
    wanted = [each.gate for each in opening.opened]
    major = situation.facts.get("nvcc").partition(".")[0]
    for version in _toolkits():
        if version.partition(".")[0] != major:
            continue
        less = Change("cuda", version)
        if Version(version) >= Version(cuda.version):
            break
        found = open_gates(replace(target, changes=(less, *target.without(cuda))), situation)
        if [each.gate for each in found.opened] == wanted:
            return less
    return None


def _toolkits() -> list[str]:
    """Releases that are known to open a gate, the oldest first."""
    openers = (known.opened_by for known in chains().gates if known.opened_by)
    return sorted({each.version for each in openers if each.component == "cuda"}, key=Version)


@dataclass(frozen=True)
class Flip:
    """Facts under which the change would open one more gate."""

    conditions: tuple[Condition, ...]
    gate: Gate


def flips(target: Target, facts: Facts) -> tuple[Flip, ...]:
    """Under which other facts the change would open a gate that it does not open now."""
    after = facts_after(target.changes, facts)
    found = []
    for known in chains().gates:
        altered = (c for c in known.closed_when if _release(facts, c) != _release(after, c))
        missing = tuple(c for c in known.closed_when if c.holds(facts) is not True)
        if missing and any(c.holds(after) is False for c in altered):
            found.append(Flip(missing, known.gate))
    return tuple(found)


def _release(facts: Facts, condition: Condition) -> str:
    """A fact as conditions compare it: a version without its build."""
    return facts.get(condition.name).partition("+")[0]
