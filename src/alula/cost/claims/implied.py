"""What claims imply about rows, about τ, and about the most that communication can be worth."""

from __future__ import annotations

from collections.abc import Iterator

from alula.cost.allreduce import FlatAllReduce
from alula.cost.claims.case import Case, Claims
from alula.cost.claims.finding import EXTRA_MS, Finding
from alula.cost.claims.rows import exchanges, rows_explaining, rows_taking
from alula.cost.draft import Draft, chain
from alula.cost.machine import KnownDrafter
from alula.cost.remedies import with_allreduce
from alula.cost.round import Setting

SHORT_CHAIN = 3
"""The draft that claims are compared with: what public drafters are measured with."""
_ROWS = (4, 8, 16, 20)
# A slow transport whatever the size, to show how little the rows depend on it.
_FLAT_S = 60e-6


def emitted(claims: Claims, drafter: KnownDrafter | None) -> Iterator[Finding]:
    """Which τ do the claimed speed and verification amount to?"""
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


def break_even(claims: Claims) -> Iterator[Finding]:
    """Which τ would the claimed verification have to emit?"""
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


def rows_of_verification(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """How many rows make a verification as long as it was measured?"""
    if claims.verify_ms is None:
        return
    wanted_s = claims.verify_ms * 1e-3
    flat = with_allreduce(setting, FlatAllReduce(_FLAT_S, "60 µs flat"))
    tried = [(setting, setting.speed.allreduce.name), (flat, flat.speed.allreduce.name)]
    for own, name in tried if exchanges(setting) else tried[:1]:
        rows = rows_taking(own, wanted_s)
        step = own.step(rows)
        explained = rows_explaining(own, wanted_s) is not None
        yield Finding(
            f"rows that take {claims.verify_ms:g} ms, all-reduces {name}",
            f"an ordinary engine with all-reduces as in {name}",
            f"{rows} rows: reading {step.memory_s * 1e3:.1f} + kernels {step.launch_s * 1e3:.1f} + "
            f"all-reduces {step.exchange_s * 1e3:.1f} + fixed {step.fixed_s * 1e3:.2f} = "
            f"{step.total_s * 1e3:.1f} ms",
            "implied" if explained else "differs",
            f"{rows} rows; all-reduces are {step.exchange_s / step.total_s:.0%} of it"
            if explained
            else f"no number of rows takes {claims.verify_ms:g} ms with all-reduces {name}",
            {"rows": rows, "verify_ms": step.total_s * 1e3},
        )


def needed_allreduce(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """How slow would all-reduces have to be, with so many rows, to fill the verification?"""
    number = exchanges(setting)
    if claims.verify_ms is None or not number:
        return
    free = with_allreduce(setting, FlatAllReduce(0.0))
    needed = {n: (claims.verify_ms * 1e-3 - free.step(n).total_s) / number * 1e6 for n in _ROWS}
    yield Finding(
        f"all-reduce that takes a verification to {claims.verify_ms:g} ms",
        "an ordinary engine; the rows are not claimed",
        f"({claims.verify_ms:g} ms − everything else) / {number}",
        "implied",
        ", ".join(f"{us:.0f} µs with {n} rows" for n, us in needed.items() if us > 0)
        or "none: everything else takes longer",
        {f"us_at_{n}_rows": us for n, us in needed.items()},
    )


def short_chain(setting: Setting, drafter: KnownDrafter | None) -> Iterator[Finding]:
    """Which τ would a short chain have to emit on this machine?"""
    short = chain(SHORT_CHAIN)
    whole = setting.round(short)
    beside = ""
    if drafter is not None:
        beside = f"; {drafter.name} reach {drafter.tau_low:g} to {drafter.tau_high:g}, the one used"
        beside += " here may not"
    yield Finding(
        f"break-even of {short.name}",
        f"{setting.host_s * 1e3:g} ms of host time in a round",
        f"(verify {whole.verify.total_s * 1e3:.1f} + drafting {whole.drafting.total_s * 1e3:.1f} + "
        f"host {whole.host_s * 1e3:.1f} ms) / {setting.step().total_s * 1e3:.2f} ms",
        "implied",
        f"τ must reach {setting.break_even(short):.2f}{beside}",
        {"break_even": setting.break_even(short)},
    )


def bound_by_weights(case: Case, setting: Setting) -> Iterator[Finding]:
    """The most that free communication brings if the weights of many rows fill a verification."""
    claims, steps = case.claims, case.assumed.draft_steps
    if claims.speculative_tok_s is None or claims.verify_ms is None or steps is None:
        return
    rows = rows_explaining(setting, claims.verify_ms * 1e-3)
    if rows is None or rows <= steps:
        return
    draft = Draft(steps, -(-(rows - 1) // steps), rows - 1)
    free = with_allreduce(setting, FlatAllReduce(0.0, "free"))
    now_s, free_s = setting.round(draft).total_s, free.round(draft).total_s
    tau = claims.speculative_tok_s * now_s
    yield Finding(
        "bound: the weights dominate",
        f"{rows} rows as above, {steps} draft steps (assumed), every all-reduce free",
        f"{claims.speculative_tok_s:g} tok/s × {now_s * 1e3:.1f} ms = τ {tau:.2f}; "
        f"τ / {free_s * 1e3:.1f} ms",
        "implied",
        f"at most {tau / free_s:.0f} tok/s, where plain decoding would reach "
        f"{free.plain_tok_s():.0f}",
        {"tok_s": tau / free_s, "tau": tau, "plain_tok_s": free.plain_tok_s()},
    )


def bound_by_share(claims: Claims) -> Iterator[Finding]:
    """The most that free communication brings if the claimed share is believed."""
    if claims.speculative_tok_s is None or claims.verify_ms is None:
        return
    if claims.communication_share is None:
        return
    kept = 1 - claims.communication_share
    tau, left_ms = claims.speculative_tok_s * claims.verify_ms * 1e-3, claims.verify_ms * kept
    yield Finding(
        "bound: the claimed share is true",
        f"{claims.communication_share:.0%} of the verification is communication, and becomes "
        "free; drafting is free",
        f"τ {tau:.2f} / ({claims.verify_ms:g} × {kept:.2f} = {left_ms:.1f} ms)",
        "implied",
        f"at most {tau / left_ms * 1e3:.0f} tok/s",
        {"tok_s": tau / left_ms * 1e3, "tau": tau, "round_ms": left_ms},
    )
