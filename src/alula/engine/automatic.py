"""Speculation by measurement: how deep to draft, launch by launch, from what rows cost here."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

import torch

from alula.cache.pool import KVPool
from alula.engine.events import LaunchRecord
from alula.engine.rounds import Rounds
from alula.engine.runner import Emitted
from alula.engine.scheduler import Step
from alula.engine.speculator import Speculator
from alula.models.decoder import Decoder
from alula.ops.rows import Rows
from alula.speculation.drafter import Drafter
from alula.speculation.ledger import Ledger
from alula.speculation.policy import Choice, DepthPolicy, RowCost, Survival
from alula.speculation.tree import nodes_to

MEASURED_ROWS = (1, 2, 4, 8, 16, 32)
_REPEATS = 3
_ALLOWED_PLAIN_STEPS = 5
_MEMORY = 0.9  # of a mean that follows the machine's speed, per launch
_STALL, _STALLS_APART = 4.0, 64
"""A round that takes longer than so many times what was planned was held up by something else, and
is booked as planned; but only once in so many launches, and in twice as many each time, since
rounds that are slow often are slow, and what is forgiven at a steady rate is bounded by nothing.
"""


class AutomaticSpeculator(Speculator):
    """Drafts as deep as pays, and not at all where nothing does.

    What it may lose against plain decoding is bounded by a ledger, whatever is accepted. It
    chooses from what it has seen: a launch that begins before the one before it was read is
    chosen for without that.
    """

    def __init__(self, drafter: Drafter, cost: RowCost, what: str) -> None:
        """`cost`: seconds of a launch by rows, measured; `what` names the drafter."""
        super().__init__(drafter, _explain(what, cost, drafter.shape.nodes))
        self._cost = cost
        self._policy = self._new_policy()
        self._survivals: dict[int, Survival] = {}
        self._what = what
        self._draft_cost: RowCost | None = None
        self._pace = 1.0
        self._since_stall = self._stalls_apart = _STALLS_APART
        self.abandon()

    def abandon(self) -> None:
        """Launches under way have failed; nothing of them will be observed."""
        nothing = Choice(0, "nothing to draft for", 0.0, 0.0)
        self._unbooked = deque([nothing])

    def measure(self, rounds: Rounds, most: int) -> None:
        """Take the costs from rounds as they are launched, of one and of `most` sequences.

        A round is timed plain, with what it verifies, half of it too, and with what it drafts.
        """
        depth, rows, drafts = self.shape.depth, {}, {}
        for batch in {1, most}:
            plain = rows[batch] = rounds.seconds(batch, 0, 0)
            for pending in {(depth + 1) // 2, depth}:
                rows[batch * (1 + self._nodes(pending))] = rounds.seconds(batch, pending, 0)
            drafts[batch] = max(rounds.seconds(batch, 0, depth) - plain, 0.0) / depth
        self._cost, self._draft_cost = RowCost(rows), RowCost(drafts)
        self._policy = self._new_policy()
        self.reason = _explain(self._what, self._cost, self.shape.nodes)

    def _new_policy(self) -> DepthPolicy:
        ledger = Ledger(_ALLOWED_PLAIN_STEPS * self._cost.at(1))
        return DepthPolicy(ledger, self.shape.depth, self._nodes)

    def _nodes(self, depth: int) -> int:
        return nodes_to(self.shape, depth)

    def depth(self, step: Step) -> int:
        """Levels to draft for the launch after `step`."""
        sequences = [*step.rounds, *(chunk.sequence for chunk in step.chunks if chunk.final)]
        # Launches under way verify what was chosen before them, and are in no book yet.
        under_way = sum(max(0.0, c.seconds - c.plain_seconds) for c in self._unbooked)
        choice = Choice(0, "nothing to draft for", 0.0, 0.0)
        if sequences:
            survivals = [self._survivals.setdefault(s.id, Survival()) for s in sequences]
            draft = self._level_seconds(len(sequences))
            choice = self._policy.choose(self._cost, survivals, draft, under_way)
        self._unbooked.append(choice)
        return choice.depth

    def _level_seconds(self, batch: int) -> float:
        return self._draft_cost.at(batch) if self._draft_cost else self.draft_seconds

    def observe(self, record: LaunchRecord, rounds: list[tuple[int, Emitted]]) -> None:
        """Learn acceptance from every round, and the machine's pace from plain launches."""
        verified = self._unbooked.popleft() if len(self._unbooked) > 1 else self._unbooked[0]
        for sequence_id, emitted in rounds:
            if emitted.drafted:
                self._survivals[sequence_id].observe(emitted.drafted, emitted.accepted)
        drafted = self._unbooked[0]
        if rounds:
            tokens = sum(len(emitted.tokens) for _, emitted in rounds) / len(rounds)
            self._book(record, tokens, verified, drafted)
        else:
            self._policy.record(verified, 0, drafted.depth * self._level_seconds(1))

    def _book(self, record: LaunchRecord, tokens: float, verified: Choice, drafted: Choice) -> None:
        """Enter a launch that verified one choice's draft and made another's.

        One with prompt chunks takes as much longer as planned, since its time is mostly theirs.
        No other takes less: what seems to is a sign that the machine has become faster, for plain
        launches too.
        """
        plain = self._cost.at(record.sequences)
        drafts = drafted.depth * self._level_seconds(record.sequences)
        planned = self._cost.at(record.sequences + record.draft_nodes) + drafts
        seconds = planned
        if not record.chunk_rows:
            self._since_stall += 1
            if self._is_plain(record, verified, drafted):
                self._follow(record.seconds / planned)
            else:
                taken = self._forgiven(record.seconds / self._pace, max(planned, verified.seconds))
                seconds = max(taken, planned)
        self._policy.record(verified._replace(plain_seconds=plain), tokens, seconds)

    def _is_plain(self, record: LaunchRecord, verified: Choice, drafted: Choice) -> bool:
        """Whether nothing of a launch is the drafts'. A captured round computes the rows of all
        nodes there may be, also where the drafter found none.
        """
        is_captured = self._draft_cost is not None
        return not (verified.depth or drafted.depth if is_captured else record.draft_nodes)

    def _follow(self, pace: float) -> None:
        """The machine's pace in one launch; a stall is none."""
        pace = min(pace, _STALL * self._pace)
        self._pace = _MEMORY * self._pace + (1 - _MEMORY) * pace

    def _forgiven(self, seconds: float, planned: float) -> float:
        """The seconds of a round, or what was planned where the machine stalled."""
        if seconds <= _STALL * planned or self._since_stall < self._stalls_apart:
            return seconds
        self._since_stall = 0
        self._stalls_apart *= 2
        return planned

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended."""
        self._survivals.pop(sequence_id, None)


def measure_rows(decoder: Decoder, rows: tuple[int, ...] = MEASURED_ROWS) -> RowCost:
    """Time launches of one sequence with these numbers of rows, interleaved; medians.

    It runs the decoder on a small pool of its own, at positions 0 and up.
    """
    shape = decoder.shape
    most = max(rows)
    pool = KVPool(
        layers=shape.layers,
        pages=1,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=most,
        dtype=decoder.cache_dtype,
        device=decoder.device,
    )
    seconds: dict[int, list[float]] = {count: [] for count in rows}
    for repeat in range(_REPEATS + 1):
        for count in rows:
            taken = _timed_launch(decoder, pool, count)
            if repeat:  # the first round warms up
                seconds[count].append(taken)
    return RowCost({count: median(taken) for count, taken in seconds.items()})


def _timed_launch(decoder: Decoder, pool: KVPool, count: int) -> float:
    at = torch.arange(count, device=decoder.device)
    none = torch.zeros_like(at[:1])
    rows = Rows(at, at, torch.zeros_like(at), at, page_table=none[None], base=none)
    started = time.perf_counter()
    decoder.logits(decoder.forward(at, rows, pool).last)
    if decoder.device.type == "cuda":
        torch.cuda.synchronize(decoder.device)
    return time.perf_counter() - started


def _explain(what: str, cost: RowCost, nodes: int) -> str:
    plain, full = cost.at(1) * 1e3, cost.at(1 + nodes) * 1e3
    return (
        f"auto: {what}, up to {nodes} tokens a round as long as it pays (measured: 1 row "
        f"{plain:.1f} ms, {1 + nodes} rows {full:.1f} ms, so {full / plain:.2f} tokens a round "
        "break even); override with --speculation off, chain:K or tree:DEPTHxWIDTH:NODES"
    )
