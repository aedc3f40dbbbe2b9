"""A floor under speculation: what it may lose at most, whatever happens."""

from __future__ import annotations


class Ledger:
    """Bounds the time lost to speculation, whatever is accepted.

    Let B be the plain seconds of all tokens emitted so far and T the seconds taken. A round is
    permitted only if T would stay within (1 + eps) B + allowance even if it accepted nothing:
    it always emits what a plain launch would, so that B rises by at least `plain`. Hence, where
    rounds cost what was planned, T <= (1 + eps) B + allowance at all times; a round that costs
    more overshoots by that much once. Gains beyond `cap` seconds are dropped, so that a lucky
    beginning does not pay for an endless bad end.
    """

    def __init__(self, allowance: float, eps: float = 0.03, cap: float = float("inf")) -> None:
        self._allowance, self._eps, self._cap = allowance, eps, cap
        self._saved = 0.0
        self._plain = 0.0

    def permits(self, seconds: float, plain: float) -> bool:
        """Whether a round of `seconds` may run where a plain launch takes `plain`."""
        return self._saved + plain - seconds >= -(
            self._allowance + self._eps * (self._plain + plain)
        )

    def record(self, seconds: float, plain: float) -> None:
        """A launch took `seconds`; plain decoding needs `plain` for the tokens it emitted."""
        self._saved = min(self._saved + plain - seconds, self._cap)
        self._plain += plain
