"""One question put to the planner, from what is wanted to what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from alula.diagnosis.features import check_feature
from alula.errors import MachineError, UsageError
from alula.machine.environment import environment_at, own_environment
from alula.machine.facts import Machine
from alula.machine.software import Software, read_software
from alula.machine.toolkits import Toolkit, find_toolkits
from alula.models.progress import Progress
from alula.stack.by_hand import Judged, read_hand_made
from alula.stack.catalog import Catalog, Target
from alula.stack.indexes import Index
from alula.stack.judging import judge
from alula.stack.offer import serving
from alula.stack.patches_built import why_built_here
from alula.stack.plan import Plan, check_wanted, make_plan
from alula.stack.reading import Reader
from alula.stack.request import Request
from alula.stack.resolver import Resolver
from alula.stack.rules import architecture_of
from alula.stack.solve import Solver
from alula.stack.toolkit import Release
from alula.stack.wheel_facts import FactStore
from alula.stack.wheels import Wheels


@dataclass(frozen=True)
class Question:
    """Everything that a plan depends on."""

    wanted: tuple[str, ...]
    goals: tuple[str, ...]
    model: str
    hand_made: Path | None
    cuda: Release | None
    indexes: tuple[Index, ...]
    target: Target
    as_of: datetime | None
    offline: bool
    wheelhouse: Path | None
    seconds: float
    machine: Machine
    assumed: bool
    """Whether the machine is only asked about."""
    baseline: Path | None
    environ: Mapping[str, str]
    cache: Path | None
    kept: Path | None
    """Where whole wheels are kept for building environments."""
    free_bytes: int


@dataclass(frozen=True)
class Answer:
    """A plan, and what is wrong with the one made by hand where there is one."""

    plan: Plan
    judged: Judged | None = None
    down: Mapping[str, str] = field(default_factory=dict)
    """Indexes that did not answer, and why."""

    @property
    def holds(self) -> bool:
        """Whether what was asked for is had, or what was made by hand is sound."""
        return self.plan.holds and (self.judged is None or self.judged.holds)

    @property
    def is_in_the_dark(self) -> bool:
        """Whether it may be for an index alone that did not answer that it does not hold."""
        if self.judged is None or self.judged.contradictions:
            return False
        return bool(self.judged.not_checked) or bool(self.down and self.plan.attempt is None)

    def verdict(self) -> str:
        """The first line."""
        if self.judged is not None and not self.judged.holds:
            return self.judged.verdict()
        return self.plan.verdict()


def answer(
    question: Question,
    may_read: Callable[[int], bool],
    progress: Progress,
    telling: Callable[[str], None],
) -> Answer:
    """Read the indexes, search, and say what was found.

    Raises UsageError for what is no requirement, feature, model or plan, and MachineError where uv
    is missing or an index gives nonsense.
    """
    hand_made = read_hand_made(question.hand_made) if question.hand_made else None
    wanted = check_wanted(question.wanted)
    if not wanted and hand_made is None:
        raise UsageError(
            "nothing is wanted",
            "a plan is made for packages",
            "name some with --want, as in --want sglang==0.5.9, or judge a plan with --check",
        )
    goals = (*question.goals, *(hand_made.opens if hand_made else ()))
    for goal in goals:
        check_feature(goal)
    model = question.model or (hand_made.model if hand_made else "")
    request = _request(question, wanted, architecture_of(model) if model else "")
    catalog = Catalog(
        Reader(question.cache, question.offline, question.seconds),
        question.indexes,
        question.target,
        question.as_of,
        question.cache,
        question.wheelhouse,
    )
    facts = FactStore(question.cache)
    wheels = Wheels(catalog, facts, question.cache, question.kept, may_read, progress)
    with serving() as server, closing(Resolver(server, question.target)) as resolver:
        solver = Solver(catalog, resolver, wheels, request, telling)
        if hand_made is None:
            plan = make_plan(request, solver, goals)
            _check_read(plan, catalog)
            return Answer(plan)
        judged = judge(hand_made, solver)
        solver.request = judged.request
        plan = make_plan(judged.request, solver, ())
        return Answer(plan, judged.and_of(plan), catalog.down())


def _check_read(plan: Plan, catalog: Catalog) -> None:
    """MachineError where nothing was found, and not all that was asked has answered."""
    if plan.attempt is None and (down := catalog.down()):
        raise MachineError(
            "no set was found, and not every index was read",
            "; ".join([*(f"{name} is down: {why}" for name, why in down.items()), plan.verdict()]),
            "run it again when they answer, or name other indexes with --index",
        )


def _request(question: Question, wanted: tuple[str, ...], architecture: str) -> Request:
    here = not question.assumed
    return Request(
        wanted=wanted,
        machine=question.machine,
        architecture=architecture,
        cuda=question.cuda,
        baseline=_baseline(question),
        built=_built(question.baseline),
        folders=_folders(question) if here else (),
        free_bytes=question.free_bytes if here else None,
    )


def _baseline(question: Question) -> Software | None:
    if question.baseline is None:
        return None
    scans = question.cache / "scans.json" if question.cache else None
    return read_software(environment_at(question.baseline), question.environ, scans)


def _built(prefix: Path | None) -> tuple[str, ...]:
    if prefix is None:
        return ()
    packages = environment_at(prefix).distributions.items()
    return tuple(n for n, each in packages if not each.is_editable and why_built_here(each))


def _folders(question: Question) -> tuple[Toolkit, ...]:
    """Toolkits that are not part of an environment, which may be gone tomorrow."""
    prefix = question.baseline
    environment = environment_at(prefix) if prefix else own_environment()
    found = find_toolkits(environment, question.environ)
    return tuple(each for each in found if environment.prefix not in Path(each.path).parents)
