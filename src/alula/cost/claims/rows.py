"""How many rows of the target a time is worth, at best and in an ordinary engine."""

from __future__ import annotations

from dataclasses import replace

from alula.cost.remedies import ideal_speed
from alula.cost.round import Setting

_MOST_ROWS = 256
_ALIKE = 0.1


def exchanges(setting: Setting) -> int:
    """All-reduces of one launch, inside the layers."""
    return sum(each.count for work in setting.works() for each in work.collectives)


def ideal(setting: Setting, share: float = 1.0) -> Setting:
    """Reading at `share` of the nominal bandwidth, everything else free."""
    speed = ideal_speed(setting.speed)
    constants = replace(speed.constants, bandwidth_share=share)
    return setting.with_speed(replace(speed, constants=constants))


def rows_within(setting: Setting, budget_s: float) -> int:
    """The most rows whose launch takes no longer; 0 where not even one does."""
    rows = 0
    while rows < _MOST_ROWS and setting.step(rows + 1).total_s <= budget_s:
        rows += 1
    return rows


def rows_explaining(setting: Setting, wanted_s: float) -> int | None:
    """The rows whose launch takes about that long; None where none up to 256 do."""
    rows = rows_taking(setting, wanted_s)
    apart = abs(setting.step(rows).total_s / wanted_s - 1)
    return rows if apart < _ALIKE else None


def rows_taking(setting: Setting, wanted_s: float) -> int:
    """The number of rows whose launch comes closest to a time."""
    above = min(rows_within(setting, wanted_s) + 1, _MOST_ROWS)
    near = (max(above - 1, 1), above)
    return min(near, key=lambda rows: abs(setting.step(rows).total_s - wanted_s))
