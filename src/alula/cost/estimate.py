"""An estimate: a plain step, rounds, break-even, remedies and bounds of one setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from alula.cost.allreduce import AllReduce, FlatAllReduce
from alula.cost.draft import Acceptance, Draft, chain
from alula.cost.layout import kv_per_gpu, weights_per_gpu
from alula.cost.machine import (
    KnownDrafter,
    Machine,
    known_drafter,
    link_allreduce,
    remedy_tables,
)
from alula.cost.remedies import (
    Remedy,
    Worth,
    fewer_rows,
    ideal_speed,
    remedies,
    with_allreduce,
    worth,
)
from alula.cost.round import Choice, Round, Setting, best_choice, chains
from alula.cost.step import Step
from alula.cost.units import size

_CHAINS = (1, 2, 3, 4, 5, 7, 10, 15)


@dataclass(frozen=True)
class Question:
    """What is asked about a setting."""

    draft: Draft
    acceptance: Acceptance | None
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    changes: tuple[str, ...] = ()
    """What was asked of the setting beside machine, batch and context, for people."""
    best_case: tuple[str, ...] = ()
    """What nothing is known about and the estimate takes at its best, for people."""


@dataclass(frozen=True)
class Bound:
    """A speed that nothing of this kind can pass."""

    name: str
    tok_s: float


@dataclass(frozen=True)
class Estimate:
    """All answers."""

    machine: Machine
    setting: Setting
    question: Question
    plain: Step
    launches: dict[int, Step]
    """By rows of each sequence."""
    asked: Round
    rounds: tuple[Round, ...]
    best: Choice
    worths: tuple[Worth, ...]
    fewer_rows_tok_s: float
    bounds: tuple[Bound, ...]
    public: KnownDrafter | None

    @property
    def plain_tok_s(self) -> float:
        """Without speculation, all sequences together."""
        return self.setting.batch / self.plain.total_s

    @property
    def break_even(self) -> float:
        """Of the asked draft: τ at which a round costs as much per token as plain steps."""
        return self.asked.total_s / self.plain.total_s

    @property
    def tau(self) -> float | None:
        """Of the asked draft, where acceptance is known."""
        known = self.question.acceptance
        return None if known is None else known.tau(self.question.draft.depth)

    @property
    def weights_bytes(self) -> float:
        """On each GPU."""
        return weights_per_gpu(self.setting.shape, self.setting.layout)

    @property
    def fits(self) -> bool:
        """Whether weights and keys fit into each GPU's memory."""
        return self.weights_bytes + self.kv_bytes <= self.machine.device.memory_bytes

    @property
    def kv_bytes(self) -> float:
        """Keys and values of all sequences, on each GPU."""
        own = self.setting
        return kv_per_gpu(own.shape, own.layout, own.batch * own.context)


def estimate(machine: Machine, setting: Setting, question: Question) -> Estimate:
    """Answer everything about one setting."""
    draft, acceptance = question.draft, question.acceptance
    best = best_choice(setting, acceptance, [draft, *chains()])
    ranks = setting.layout.ranks
    others: dict[str, tuple[AllReduce, str]] = {**remedy_tables(machine, ranks)}
    if ranks > 1:
        others["least"] = (link_allreduce(machine, ranks), "a kernel at the limit of the link")
    return Estimate(
        machine=machine,
        setting=setting,
        question=question,
        plain=setting.step(),
        launches={rows: setting.step(rows) for rows in question.rows},
        asked=setting.round(draft),
        rounds=tuple(setting.round(chain(depth)) for depth in _CHAINS),
        best=best,
        worths=tuple(
            worth(_within(remedy, machine.device.memory_bytes), best, draft, acceptance)
            for remedy in remedies(setting, others)
        ),
        fewer_rows_tok_s=fewer_rows(setting, draft, acceptance),
        bounds=_bounds(setting, question),
        public=known_drafter(setting.shape.name, draft.depth),
    )


def _within(remedy: Remedy, memory_bytes: float) -> Remedy:
    """The remedy, which says so where it takes more memory than a GPU has."""
    own = remedy.setting
    needed = weights_per_gpu(own.shape, own.layout)
    needed += kv_per_gpu(own.shape, own.layout, own.batch * own.context)
    if needed <= memory_bytes:
        return remedy
    return replace(remedy, needs=f"{size(needed)} on each GPU, which has {size(memory_bytes)}")


def _bounds(setting: Setting, question: Question) -> tuple[Bound, ...]:
    ideal = setting.with_speed(ideal_speed(setting.speed))
    free = with_allreduce(setting, FlatAllReduce(0.0, "free"))
    draft = question.draft
    found = [Bound("plain: full bandwidth, no latency, free all-reduces", ideal.plain_tok_s())]
    if setting.layout.ranks > 1:
        found.append(Bound("plain, all-reduces free", free.plain_tok_s()))
    most = setting.speculative_tok_s(draft, draft.depth + 1)
    found.append(Bound(f"{draft.name}, every draft accepted", most))
    if question.acceptance is not None and setting.layout.ranks > 1:
        tau = question.acceptance.tau(draft.depth)
        found.append(Bound(f"{draft.name}, all-reduces free", free.speculative_tok_s(draft, tau)))
    return tuple(found)
