"""How deep to draft: what a round costs on this machine against what it is likely to bring.

Pure Python. `choose_depth` compares rates; `DepthPolicy` joins it with a ledger that bounds the
price of wrong choices, and asks again, ever more rarely, where drafting did not pay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from alula.speculation.ledger import Ledger

_FIRST_PROBE, _LAST_PROBE, _PROBE_ROUNDS = 32, 1024, 4


class RowCost:
    """Seconds of a target launch by its number of rows, as measured on this machine."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """`seconds` by rows, at least one entry; made monotone by averaging neighbours that fall.

        Pool adjacent violators (Ayer et al., 1955): the nearest rising table in least squares.
        """
        pools: list[tuple[float, int]] = []
        for value in (seconds[rows] for rows in sorted(seconds)):
            pools.append((value, 1))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (above, count), (below, more) = pools.pop(), pools.pop()
                pools.append(((above * count + below * more) / (count + more), count + more))
        self._rows = sorted(seconds)
        self._seconds = [value for value, count in pools for _ in range(count)]

    def at(self, rows: int) -> float:
        """Seconds of `rows` rows: on the line between measurements, beyond the last at its rate."""
        above = bisect_left(self._rows, rows)
        if above == len(self._rows):
            return self._seconds[-1] * rows / self._rows[-1]
        if above == 0:
            return self._seconds[0]
        left, right = self._rows[above - 1], self._rows[above]
        low, high = self._seconds[above - 1], self._seconds[above]
        return low + (high - low) * (rows - left) / (right - left)


class Survival:
    """One request's conditional acceptance by depth: a decaying mean from a pessimistic start.

    A depth that was drafted but not reached was not observed. A depth without evidence is
    believed to do `falloff` as well as the one above it.
    """

    def __init__(
        self, start: float = 0.5, falloff: float = 0.8, doubt: float = 4.0, decay: float = 0.95
    ) -> None:
        """`doubt`: how many observations the start weighs; `decay` of all weights, a round."""
        self._start, self._falloff, self._doubt, self._decay = start, falloff, doubt, decay
        self._rates: list[float] = []
        self._weights: list[float] = []

    def observe(self, drafted: int, accepted: int) -> None:
        """Record a round that drafted `drafted` levels and accepted `accepted` of them."""
        for level in range(min(drafted, accepted + 1)):
            if level == len(self._rates):
                self._rates.append(self.acceptance(level + 1)[level])
                self._weights.append(self._doubt)
            self._weights[level] = self._decay * self._weights[level] + 1
            hit = float(level < accepted)
            self._rates[level] += (hit - self._rates[level]) / self._weights[level]

    def forget(self) -> None:
        """Trust what was seen no more than a start, so that a probe can tell a change."""
        self._weights = [min(weight, self._doubt) for weight in self._weights]

    def acceptance(self, depth: int) -> list[float]:
        """Conditional acceptance at depths 1 … `depth`."""
        rates = self._rates[:depth]
        while len(rates) < depth:
            rates.append(rates[-1] * self._falloff if rates else self._start)
        return rates

    def expected(self, most: int) -> list[float]:
        """A(1) … A(most), the drafted tokens a round of each depth is expected to accept."""
        return list(accumulate(accumulate(self.acceptance(most), float.__mul__)))


class Choice(NamedTuple):
    """A depth, why, and what the round is planned to cost."""

    depth: int
    reason: str
    seconds: float
    plain_seconds: float
    """Of a launch without drafts."""


def choose_depth(
    cost: RowCost,
    survivals: Sequence[Survival],
    max_depth: int,
    draft_seconds: float,
    *,
    nodes: Callable[[int], int] = int,
    margin: float = 0.03,
    shallowest: int = 0,
) -> Choice:
    """The depth k from 0 to `max_depth` with the most tokens a second, 0 unless it pays.

    The rate of k for b sequences is b (1 + A(k)) / (C(b (1 + n(k))) + k d), with n(k) = k for
    chains, `nodes(k)` in general, and d = `draft_seconds` a level. It pays if it exceeds the plain
    b / C(b) by `margin`. `shallowest` 1 asks for the best depth even where it does not pay.
    """
    batch = len(survivals)
    plain = cost.at(batch)
    best, least = None, 0.0 if shallowest else 1 + margin
    accepted = [sum(a) for a in zip(*(s.expected(max_depth) for s in survivals), strict=True)]
    for depth in range(1, max_depth + 1):
        tokens = 1 + accepted[depth - 1] / batch
        seconds = cost.at(batch * (1 + nodes(depth))) + depth * draft_seconds
        gain = tokens * plain / seconds
        if gain > least:
            reason = (
                f"depth {depth}: {tokens:.2f} tokens in {seconds * 1e3:.2f} ms, {gain:.2f}x plain"
            )
            best, least = Choice(depth, reason, seconds, plain), gain
    reason = f"depth 0: no depth to {max_depth} is {1 + margin:.2f}x plain ({plain * 1e3:.2f} ms)"
    return best or Choice(0, reason, plain, plain)


class DepthPolicy:
    """Chooses each round's depth, within a ledger, and probes while it does not draft."""

    def __init__(self, ledger: Ledger, max_depth: int, nodes: Callable[[int], int] = int) -> None:
        self._ledger, self._max_depth, self._nodes = ledger, max_depth, nodes
        self._idle = 0
        self._period = _FIRST_PROBE
        self._probing = 0

    def choose(
        self,
        cost: RowCost,
        survivals: Sequence[Survival],
        draft_seconds: float,
        catch_up_seconds: float = 0.0,
    ) -> Choice:
        """The depth of the next round; `catch_up_seconds` is what it costs to begin again."""
        chosen = self._best(cost, survivals, draft_seconds)
        pays = chosen.depth > 0
        if not pays and self._probe_is_due(survivals):
            chosen = self._best(cost, survivals, draft_seconds, shallowest=1)
            chosen = chosen._replace(reason=f"probe: {chosen.reason}")
        if chosen.depth and not self._ledger.permits(
            chosen.seconds + catch_up_seconds, chosen.plain_seconds
        ):
            reason = f"depth 0: the ledger does not allow {chosen.reason}"
            chosen, pays = Choice(0, reason, chosen.plain_seconds, chosen.plain_seconds), False
        self._keep_time(chosen, pays)
        return chosen

    def record(self, choice: Choice, tokens_per_sequence: float, seconds: float) -> None:
        """A launch emitted so many tokens a sequence, in the mean, and took `seconds`."""
        self._ledger.record(seconds, tokens_per_sequence * choice.plain_seconds)

    def _best(
        self, cost: RowCost, survivals: Sequence[Survival], draft: float, shallowest: int = 0
    ) -> Choice:
        return choose_depth(
            cost, survivals, self._max_depth, draft, nodes=self._nodes, shallowest=shallowest
        )

    def _probe_is_due(self, survivals: Sequence[Survival]) -> bool:
        if self._probing == 0 and self._idle >= self._period:
            self._probing = _PROBE_ROUNDS
            self._period = min(2 * self._period, _LAST_PROBE)
            for survival in survivals:
                survival.forget()
        return self._probing > 0

    def _keep_time(self, chosen: Choice, pays: bool) -> None:
        if pays:
            self._period = _FIRST_PROBE
        self._probing = max(self._probing - 1, 0)
        self._idle = 0 if chosen.depth else self._idle + 1
