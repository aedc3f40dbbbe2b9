"""The explanations of a verification's time that claims leave open, and what decides."""

from __future__ import annotations

from dataclasses import dataclass

from alula.cost.allreduce import FlatAllReduce
from alula.cost.claims.case import Claims
from alula.cost.claims.rows import ideal, rows_explaining, rows_taking
from alula.cost.remedies import with_allreduce
from alula.cost.round import Setting


@dataclass(frozen=True)
class Story:
    """One explanation of a verification's time, with what it predicts."""

    name: str
    rows: int
    verify_s: dict[int, float]
    """By rows."""
    allreduce_s: dict[int, float]
    """By rows, one of them."""


def stories(claims: Claims, setting: Setting) -> tuple[Story, ...]:
    """The explanations of a verification's time that the claims leave open."""
    if claims.verify_ms is None:
        return ()
    wanted_s = claims.verify_ms * 1e-3
    told = []
    if claims.allreduce_us is not None and claims.measured_pass != "plain":
        slow = FlatAllReduce(claims.allreduce_us * 1e-6, "as claimed")
        name = f"all-reduces of {claims.allreduce_us:g} µs dominate"
        told.append(_story(name, with_allreduce(ideal(setting), slow), wanted_s))
    if rows_explaining(setting, wanted_s) is not None:
        told.append(_story("the weights of many rows dominate", setting, wanted_s))
    return tuple(told)


def _story(name: str, setting: Setting, wanted_s: float) -> Story:
    rows = (1, 2, 4, 8, 16)
    return Story(
        name,
        rows_taking(setting, wanted_s),
        {n: setting.step(n).total_s for n in rows},
        {n: setting.exchange_s(n) for n in rows},
    )


def deciding(told: tuple[Story, ...]) -> str | None:
    """The measurements that tell two explanations apart."""
    if len(told) < 2:
        return None
    first, second = told
    return (
        f"Two cheap measurements decide: a launch with 1 row and with 16 rows "
        f"({first.verify_s[1] * 1e3:.0f} and {first.verify_s[16] * 1e3:.0f} ms if {first.name}, "
        f"{second.verify_s[1] * 1e3:.0f} and {second.verify_s[16] * 1e3:.0f} ms if {second.name}), "
        f"and one all-reduce of each size inside a graph ({first.allreduce_s[1] * 1e6:.0f} and "
        f"{first.allreduce_s[16] * 1e6:.0f} µs against {second.allreduce_s[1] * 1e6:.0f} and "
        f"{second.allreduce_s[16] * 1e6:.0f} µs)."
    )
