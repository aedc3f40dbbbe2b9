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

_ROWS = (4, 8, 16, 20)
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
    for own, name in ((setting, setting.speed.allreduce.name), (flat, "60 µs flat")):
        rows = rows_taking(own, wanted_s)
        step = own.step(rows)
        explained = rows_explaining(own, wanted_s) is not None
        yield Finding(
            f"rows that take {claims.verify_ms:g} ms, all-reduces {name}",
            f"an ordinary engine with all-reduces as in {name}",
            f"{rows} rows: reading {step.memory_s * 1e3:.1f} + kernels {step.launch_s * 1e3:.1f} + "
            f"all-reduces {step.exchange_s * 1e3:.1f} + fixed {step.fixed_s * 1e3:.2f} = "
            f"{step.total_s * 1e3:.1f} ms",
            "implied" if explained else "excluded",
            f"{rows} rows; all-reduces are {step.exchange_s / step.total_s:.0%} of it"
            if explained
            else f"no number of rows takes {claims.verify_ms:g} ms with all-reduces {name}",
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


def short_chain(setting: Setting, drafter: KnownDrafter | None) -> Iterator[Finding]:
    """Which τ would a chain of three have to emit on this machine?"""
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


def bounds(case: Case, setting: Setting) -> Iterator[Finding]:
    """The most that communication can be worth, under both readings of the verification."""
    claims = case.claims
    if claims.speculative_tok_s is None or claims.verify_ms is None:
        return
    rows = rows_explaining(setting, claims.verify_ms * 1e-3)
    steps = case.assumed.draft_steps
    if rows is not None and steps is not None and rows > steps:
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
