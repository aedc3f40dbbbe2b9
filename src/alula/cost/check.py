"""Which claims about a machine are compatible, which exclude each other, and what they imply.

Every finding carries its arithmetic and its reading: an all-reduce timed nobody knows where is
tried in both passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from alula.cost.allreduce import FlatAllReduce
from alula.cost.claims import Attempt, Case, Claims
from alula.cost.draft import Draft, chain
from alula.cost.machine import KnownDrafter
from alula.cost.remedies import ideal_speed, with_allreduce
from alula.cost.round import Setting
from alula.cost.work import step_work

Outcome = Literal["compatible", "excluded", "differs", "implied"]
_MOST_ROWS = 256
EXTRA_MS = (0.0, 5.0, 10.0)
_DIFFERS = 0.10
_ROWS = (4, 8, 16, 20)
_FLAT_S = 60e-6


@dataclass(frozen=True)
class Finding:
    """One statement about the claims."""

    name: str
    reading: str
    """What is taken to hold."""
    arithmetic: str
    outcome: Outcome
    says: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """One explanation of a verification's time, with what it predicts."""

    name: str
    rows: int
    verify_s: dict[int, float]
    """By rows."""
    allreduce_s: dict[int, float]
    """By rows, one of them."""


@dataclass(frozen=True)
class Check:
    """All that follows from a case."""

    case: Case
    setting: Setting
    findings: tuple[Finding, ...]
    stories: tuple[Story, ...]
    decides: str | None

    @property
    def excluded(self) -> tuple[Finding, ...]:
        """Claims that cannot hold together."""
        return tuple(found for found in self.findings if found.outcome == "excluded")

    def verdict(self) -> str:
        """In one sentence."""
        if not self.excluded:
            found = "No claim excludes another"
        else:
            found = f"The claims exclude each other: {self.excluded[0].says}"
        return f"{found}. {self.decides}" if self.decides else f"{found}."


def check_claims(case: Case, setting: Setting, drafter: KnownDrafter | None) -> Check:
    """Confront a case with what its model must cost on its machine."""
    claims = case.claims
    findings = (
        *_count(claims, setting),
        *_plain(claims, setting),
        *_share(claims),
        *_room(claims, setting),
        *_emitted(claims, drafter),
        *_break_even(claims),
        *_rows(claims, setting),
        *_chain(setting, drafter),
        *_bounds(case, setting),
        *[found for attempt in case.attempts for found in _attempt(attempt, claims, setting)],
        *_outcomes(case),
    )
    told = stories(claims, setting)
    return Check(case, setting, findings, told, _decides(told))


def exchanges(setting: Setting) -> int:
    """All-reduces of one launch, inside the layers."""
    works = step_work(setting.shape, setting.layout, setting.load())
    return sum(each.count for work in works for each in work.collectives)


def ideal(setting: Setting, share: float = 1.0) -> Setting:
    """Reading at `share` of the nominal bandwidth, everything else free."""
    speed = ideal_speed(setting.speed)
    constants = replace(speed.constants, bandwidth_share=share)
    return setting.with_speed(replace(speed, constants=constants))


def _count(claims: Claims, setting: Setting) -> Iterator[Finding]:
    if claims.allreduces is None:
        return
    layers, own = setting.shape.layers, exchanges(setting)
    agree = own == claims.allreduces
    yield Finding(
        "number of all-reduces",
        "one after attention and one after the MLP of each layer",
        f"{layers} layers × 2 = {own}",
        "compatible" if agree else "differs",
        f"{claims.allreduces} is what this layout needs, beside the embedding's and the logits'"
        if agree
        else f"this layout needs {own}, not {claims.allreduces}",
        {"allreduces": own},
    )


def _plain(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """Do the all-reduces fit into a plain step?"""
    if None in (claims.plain_tok_s, claims.allreduces, claims.allreduce_us):
        return
    if claims.measured_pass == "verify":
        return
    assert claims.plain_tok_s and claims.allreduces and claims.allreduce_us
    step_s = setting.batch / claims.plain_tok_s
    spent_s = claims.allreduces * claims.allreduce_us * 1e-6
    share = setting.speed.constants.bandwidth_share
    most = [
        max(0.0, step_s - ideal(setting, s).step().total_s) / claims.allreduces
        for s in (1.0, share)
    ]
    fits = claims.allreduce_us * 1e-6 <= most[0]
    arithmetic = (
        f"{claims.allreduces} × {claims.allreduce_us:g} µs = {spent_s * 1e3:.1f} ms of a step of "
        f"1/{claims.plain_tok_s:g} = {step_s * 1e3:.2f} ms; less "
        f"{ideal(setting).step().total_s * 1e3:.2f} ms of reading at full bandwidth leaves "
        f"{most[0] * 1e6:.0f} µs each, {most[1] * 1e6:.0f} µs at {share:.0%}"
    )
    says = (
        f"{claims.allreduces} all-reduces of {claims.allreduce_us:g} µs take "
        f"{spent_s / step_s:.1f} × the plain step of {step_s * 1e3:.1f} ms, into which at most "
        f"{most[0] * 1e6:.0f} µs each fit"
    )
    yield Finding(
        "all-reduces in a plain step",
        "the all-reduces were timed in plain decoding, as latency",
        arithmetic,
        "compatible" if fits else "excluded",
        f"at most {most[0] * 1e6:.0f} µs each fit" if fits else says,
        {
            "step_ms": step_s * 1e3,
            "allreduces_ms": spent_s * 1e3,
            "times_the_step": spent_s / step_s,
            "most_us_full_bandwidth": most[0] * 1e6,
            "most_us": most[1] * 1e6,
        },
    )


def _share(claims: Claims) -> Iterator[Finding]:
    if claims.verify_ms is None or claims.communication_share is None:
        return
    if claims.allreduces is None or claims.allreduce_us is None:
        return
    spent_ms = claims.allreduces * claims.allreduce_us * 1e-3
    said_ms = claims.communication_share * claims.verify_ms
    each_us = said_ms * 1e3 / claims.allreduces
    apart = abs(claims.allreduce_us / each_us - 1)
    yield Finding(
        "share of communication",
        "the all-reduces were timed in a verification",
        f"{claims.allreduces} × {claims.allreduce_us:g} µs = {spent_ms:.1f} ms = "
        f"{spent_ms / claims.verify_ms:.0%} of {claims.verify_ms:g} ms; "
        f"{claims.communication_share:.0%} are {said_ms:.1f} ms = {each_us:.0f} µs each",
        "differs" if apart > _DIFFERS else "compatible",
        f"the two figures differ by {apart:.0%}",
        {
            "share_of_verify": spent_ms / claims.verify_ms,
            "share_ms": said_ms,
            "each_us": each_us,
            "apart": apart,
        },
    )


def _room(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """How many rows can the rest of a verification read the weights for?"""
    if claims.verify_ms is None or claims.measured_pass == "plain":
        return
    spent = []
    if claims.allreduces is not None and claims.allreduce_us is not None:
        each = f"{claims.allreduces} all-reduces of {claims.allreduce_us:g} µs"
        spent.append((each, claims.allreduces * claims.allreduce_us * 1e-3))
    if claims.communication_share is not None:
        name = f"{claims.communication_share:.0%} of communication"
        spent.append((name, claims.communication_share * claims.verify_ms))
    share = setting.speed.constants.bandwidth_share
    for name, spent_ms in spent:
        left_ms = claims.verify_ms - spent_ms
        most, fewer = (rows_within(ideal(setting, s), left_ms * 1e-3) for s in (1.0, share))
        yield Finding(
            f"room for rows beside {name}",
            f"{name} belong to a verification; no latency of kernels at all",
            f"{claims.verify_ms:g} − {spent_ms:.1f} = {left_ms:.1f} ms; reading for {most} rows "
            f"takes {ideal(setting).step(most).total_s * 1e3:.1f} ms at full bandwidth, for "
            f"{most + 1} {ideal(setting).step(most + 1).total_s * 1e3:.1f} ms",
            "implied" if most else "excluded",
            f"at most {most} rows fit, {fewer} at {share:.0%} of the bandwidth",
            {"left_ms": left_ms, "rows_full_bandwidth": most, "rows": fewer},
        )


def _emitted(claims: Claims, drafter: KnownDrafter | None) -> Iterator[Finding]:
    if claims.speculative_tok_s is None or claims.verify_ms is None:
        return
    taus = [claims.speculative_tok_s * (claims.verify_ms + extra) * 1e-3 for extra in EXTRA_MS]
    beside = ""
    if drafter is not None:
        beside = f"; {drafter.name}: {drafter.tau_low:g} to {drafter.tau_high:g}"
    yield Finding(
        "tokens emitted per round",
        "drafting and the host take 0, 5 or 10 ms beside the verification",
        f"{claims.speculative_tok_s:g} tok/s × ({claims.verify_ms:g} + 0, 5, 10 ms)",
        "implied",
        "τ is " + ", ".join(f"{tau:.2f}" for tau in taus) + beside,
        {f"tau_at_{extra:g}_ms": tau for extra, tau in zip(EXTRA_MS, taus, strict=True)},
    )


def _break_even(claims: Claims) -> Iterator[Finding]:
    if claims.plain_tok_s is None or claims.verify_ms is None:
        return
    needed = [claims.plain_tok_s * (claims.verify_ms + extra) * 1e-3 for extra in EXTRA_MS]
    yield Finding(
        "break-even of this setting",
        "drafting and the host take 0, 5 or 10 ms beside the verification",
        f"({claims.verify_ms:g} + 0, 5, 10 ms) × {claims.plain_tok_s:g} tok/s",
        "implied",
        "τ must reach " + ", ".join(f"{tau:.2f}" for tau in needed),
        {f"break_even_at_{extra:g}_ms": tau for extra, tau in zip(EXTRA_MS, needed, strict=True)},
    )


def _rows(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """How many rows make a verification as long as it was measured?"""
    if claims.verify_ms is None:
        return
    wanted_s = claims.verify_ms * 1e-3
    flat = with_allreduce(setting, FlatAllReduce(_FLAT_S, "60 µs flat"))
    for own, name in ((setting, setting.speed.allreduce.name), (flat, "60 µs flat")):
        rows = rows_taking(own, wanted_s)
        step = own.step(rows)
        yield Finding(
            f"rows that take {claims.verify_ms:g} ms, all-reduces {name}",
            f"an ordinary engine with all-reduces as in {name}",
            f"{rows} rows: reading {step.memory_s * 1e3:.1f} + kernels {step.launch_s * 1e3:.1f} + "
            f"all-reduces {step.exchange_s * 1e3:.1f} + fixed {step.fixed_s * 1e3:.2f} = "
            f"{step.total_s * 1e3:.1f} ms",
            "implied",
            f"{rows} rows; all-reduces are {step.exchange_s / step.total_s:.0%} of it",
            {"rows": rows, "verify_ms": step.total_s * 1e3},
        )
    if (number := exchanges(setting)) > 0:
        free = with_allreduce(setting, FlatAllReduce(0.0))
        needed = {n: (wanted_s - free.step(n).total_s) / number * 1e6 for n in _ROWS}
        yield Finding(
            f"all-reduce that takes a verification to {claims.verify_ms:g} ms",
            "an ordinary engine; the rows are not claimed",
            f"({claims.verify_ms:g} ms − everything else) / {number}",
            "implied",
            ", ".join(f"{us:.0f} µs with {n} rows" for n, us in needed.items() if us > 0),
            {f"us_at_{n}_rows": us for n, us in needed.items()},
        )


def _chain(setting: Setting, drafter: KnownDrafter | None) -> Iterator[Finding]:
    short = chain(3)
    whole = setting.round(short)
    beside = ""
    if drafter is not None:
        beside = f"; {drafter.name} reach {drafter.tau_low:g} to {drafter.tau_high:g}, the one used"
        beside += " here may not"
    yield Finding(
        "break-even of chain:3",
        f"{setting.host_s * 1e3:g} ms of host time in a round",
        f"(verify {whole.verify.total_s * 1e3:.1f} + drafting {whole.drafting.total_s * 1e3:.1f} + "
        f"host {whole.host_s * 1e3:.1f} ms) / {setting.step().total_s * 1e3:.2f} ms",
        "implied",
        f"τ must reach {setting.break_even(short):.2f}{beside}",
        {"break_even": setting.break_even(short)},
    )


def _bounds(case: Case, setting: Setting) -> Iterator[Finding]:
    """The most that communication can be worth, under both readings of the verification."""
    claims = case.claims
    if claims.speculative_tok_s is None or claims.verify_ms is None:
        return
    rows = rows_taking(setting, claims.verify_ms * 1e-3)
    steps = case.assumed.draft_steps
    if rows > 1 and steps is not None:
        draft = Draft(steps, max(1, -(-(rows - 1) // steps)), rows - 1)
        now, free = setting, with_allreduce(setting, FlatAllReduce(0.0, "free"))
        tau = claims.speculative_tok_s * now.round(draft).total_s
        bound = free.speculative_tok_s(draft, tau)
        yield Finding(
            "bound: the weights dominate",
            f"{rows} rows as above, {steps} draft steps (assumed), every all-reduce free",
            f"{claims.speculative_tok_s:g} tok/s × {now.round(draft).total_s * 1e3:.1f} ms = "
            f"τ {tau:.2f}; τ / {free.round(draft).total_s * 1e3:.1f} ms",
            "implied",
            f"at most {bound:.0f} tok/s, where plain decoding would reach {free.plain_tok_s():.0f}",
            {"tok_s": bound, "tau": tau, "plain_tok_s": free.plain_tok_s()},
        )
    if claims.communication_share is not None:
        tau = claims.speculative_tok_s * claims.verify_ms * 1e-3
        left_ms = claims.verify_ms * (1 - claims.communication_share)
        bound = tau / left_ms * 1e3
        yield Finding(
            "bound: the claimed share is true",
            f"{claims.communication_share:.0%} of the verification is communication, and becomes "
            "free; drafting is free",
            f"τ {tau:.2f} / ({claims.verify_ms:g} × {1 - claims.communication_share:.2f} = "
            f"{left_ms:.1f} ms)",
            "implied",
            f"at most {bound:.0f} tok/s",
            {"tok_s": bound, "tau": tau, "round_ms": left_ms},
        )


def _attempt(attempt: Attempt, claims: Claims, setting: Setting) -> Iterator[Finding]:
    """A slower all-reduce: could the link's bandwidth explain it?"""
    if attempt.plain_tok_s is None or claims.plain_tok_s is None:
        return
    number = claims.allreduces or exchanges(setting)
    if not number:
        return
    more_s = (1 / attempt.plain_tok_s - 1 / claims.plain_tok_s) / number
    peers = setting.layout.ranks - 1
    size = setting.payload_bytes()
    wire_s = peers * size / setting.speed.link_bytes_s if setting.speed.link_bytes_s else 0.0
    if more_s <= 0 or not wire_s:
        return
    yield Finding(
        f"{attempt.name}: {attempt.plain_tok_s:g} tok/s",
        "all of the loss lies in the all-reduces, and they are bound by the link",
        f"(1/{attempt.plain_tok_s:g} − 1/{claims.plain_tok_s:g}) / {number} = "
        f"{more_s * 1e6:.0f} µs more for each; {size:,} B to {peers} peers at "
        f"{setting.speed.link_bytes_s / 1e9:g} GB/s take {wire_s * 1e6:.1f} µs",
        "excluded" if more_s > 5 * wire_s else "compatible",
        f"contention would have to be {more_s / wire_s:.0f} × to explain it: look for peer access "
        "through system memory instead"
        if more_s > 5 * wire_s
        else "the link's bandwidth can explain it",
        {"more_us": more_s * 1e6, "wire_us": wire_s * 1e6, "times": more_s / wire_s},
    )


def _outcomes(case: Case) -> Iterator[Finding]:
    if not case.attempts:
        return
    counts = {
        outcome: sum(attempt.outcome == outcome for attempt in case.attempts)
        for outcome in ("failed", "slower", "faster", "untested")
    }
    claimed = case.claims.attempts_failed
    agree = claimed is None or claimed == counts["failed"]
    shown = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    yield Finding(
        "what was tried",
        "an attempt failed if it did not run",
        " + ".join(str(number) for number in counts.values() if number)
        + f" = {len(case.attempts)}",
        "compatible" if agree else "differs",
        shown if agree else f"{shown}; {claimed} were said to have failed",
        {key: float(number) for key, number in counts.items()},
    )


def rows_within(setting: Setting, budget_s: float) -> int:
    """The most rows whose launch takes no longer; 0 where not even one does."""
    rows = 0
    while rows < _MOST_ROWS and setting.step(rows + 1).total_s <= budget_s:
        rows += 1
    return rows


def rows_taking(setting: Setting, wanted_s: float) -> int:
    """The number of rows whose launch comes closest to a time."""
    above = min(rows_within(setting, wanted_s) + 1, _MOST_ROWS)
    near = (max(above - 1, 1), above)
    return min(near, key=lambda rows: abs(setting.step(rows).total_s - wanted_s))


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


def _decides(told: tuple[Story, ...]) -> str | None:
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
