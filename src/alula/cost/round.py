"""A round: verify the draft, then draft again; what it must emit to pay."""

from __future__ import annotations

from dataclasses import dataclass, replace

from alula.cost.draft import Acceptance, Draft, chain
from alula.cost.drafter import DrafterShape, joint_work, step_work
from alula.cost.layout import Layout
from alula.cost.shape import Component, ModelShape
from alula.cost.step import Part, Speed, Step, step_time, timed
from alula.cost.work import ACTIVATION_BYTES, Load, Work
from alula.cost.work import step_work as target_work

LONGEST_CHAIN = 15


@dataclass(frozen=True)
class Round:
    """The time of one round with a draft, in seconds."""

    draft: Draft
    verify: Step
    drafting: Part
    host_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.verify.total_s + self.drafting.total_s + self.host_s


@dataclass(frozen=True)
class Setting:
    """Everything that fixes the times of plain steps and of rounds."""

    shape: ModelShape
    layout: Layout
    speed: Speed
    batch: int = 1
    context: int = 1024
    drafter: DrafterShape | None = None
    host_s: float = 0.0
    """What the host adds to each round, on top of a plain step's."""

    def load(self, rows: int = 1) -> Load:
        """A launch of that many rows of each sequence."""
        return Load(rows, self.batch, self.context)

    def works(self, rows: int = 1) -> tuple[Work, ...]:
        """What each component does in such a launch, on the GPU with most to do."""
        return target_work(self.shape, self.layout, self.load(rows))

    def payload_bytes(self, rows: int = 1) -> int:
        """Of one all-reduce in such a launch."""
        return self.load(rows).all_rows * self.shape.hidden * ACTIVATION_BYTES

    def exchange_s(self, rows: int = 1) -> float:
        """One all-reduce in such a launch."""
        return self.speed.allreduce.seconds(self.payload_bytes(rows))

    def step(self, rows: int = 1) -> Step:
        """One launch of the target with that many rows of each sequence."""
        return step_time(self.shape, self.layout, self.load(rows), self.speed)

    def plain_tok_s(self) -> float:
        """Tokens a second without speculation, all sequences together."""
        return self.batch / self.step().total_s

    def round(self, draft: Draft) -> Round:
        """One round with a draft."""
        return Round(draft, self.step(draft.rows), self.drafting(draft), self.host_s)

    def drafting(self, draft: Draft) -> Part:
        """All draft steps of a round, and the joining of features before them.

        The joining and the first step run over every row the round may have accepted.
        """
        if self.drafter is None:
            return Part(Component.DRAFTER, 0.0, 0.0, 0.0)
        rows = Load(draft.width, self.batch, self.context)
        accepted = Load(draft.depth + 1, self.batch, self.context)
        works = (
            joint_work(self.drafter, self.layout, accepted),
            step_work(self.drafter, self.layout, accepted),
            *[step_work(self.drafter, self.layout, rows)] * (draft.depth - 1),
        )
        parts = timed(works, self.speed)
        return Part(
            Component.DRAFTER,
            sum(part.memory_s for part in parts),
            sum(part.launch_s for part in parts),
            sum(part.exchange_s for part in parts),
        )

    def break_even(self, draft: Draft) -> float:
        """Tokens a round must emit to be as fast as plain steps."""
        return self.round(draft).total_s / self.step().total_s

    def speculative_tok_s(self, draft: Draft, tau: float) -> float:
        """Tokens a second with a draft that emits `tau` tokens a round."""
        return self.batch * tau / self.round(draft).total_s

    def with_speed(self, speed: Speed) -> Setting:
        """The same on a machine of another speed."""
        return replace(self, speed=speed)


@dataclass(frozen=True)
class Choice:
    """A draft, or none, and the speed that comes with it."""

    draft: Draft | None
    tok_s: float

    @property
    def name(self) -> str:
        """For people."""
        return "plain" if self.draft is None else self.draft.name


def best_choice(setting: Setting, acceptance: Acceptance | None, drafts: list[Draft]) -> Choice:
    """The fastest of plain decoding and `drafts`; plain where no acceptance is known."""
    choices = [Choice(None, setting.plain_tok_s())]
    if acceptance is not None:
        choices += [
            Choice(draft, setting.speculative_tok_s(draft, acceptance.tau(draft.depth)))
            for draft in drafts
        ]
    return max(choices, key=lambda choice: choice.tok_s)


def chains() -> list[Draft]:
    """Chains of every length up to `LONGEST_CHAIN`."""
    return [chain(depth) for depth in range(1, LONGEST_CHAIN + 1)]
