"""What claims say about all-reduces: their number, their time, the room they leave."""

from __future__ import annotations

from collections.abc import Iterator

from alula.cost.claims.case import Attempt, Claims
from alula.cost.claims.finding import Finding
from alula.cost.claims.rows import exchanges, ideal, rows_within
from alula.cost.round import Setting

_DIFFERS = 0.10
_TIMES_TOO_MUCH = 5


def number_of_allreduces(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """Is it as many as the layout needs?"""
    if claims.allreduces is None:
        return
    layers, own = setting.shape.layers, exchanges(setting)
    agree = own == claims.allreduces
    yield Finding(
        "number of all-reduces",
        "one after attention and one after the MLP of each layer",
        f"{layers} layers × 2 = {own}" if own == 2 * layers else f"{own} in {layers} layers",
        "compatible" if agree else "differs",
        f"{claims.allreduces} is what this layout needs, beside the embedding's and the logits'"
        if agree
        else f"this layout needs {own}, not {claims.allreduces}",
        {"allreduces": own},
    )


def fit_of_plain_step(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """Do the all-reduces fit into a plain step?"""
    if claims.plain_tok_s is None or claims.allreduces is None or claims.allreduce_us is None:
        return
    if claims.measured_pass == "verify":
        return
    step_s = setting.batch / claims.plain_tok_s
    spent_s = claims.allreduces * claims.allreduce_us * 1e-6
    share = setting.speed.constants.bandwidth_share
    reading_s = ideal(setting).step().total_s
    most_us, likely_us = (
        max(0.0, step_s - reading_s / reached) / claims.allreduces * 1e6 for reached in (1, share)
    )
    fits = f"at most {most_us:.0f} µs each fit"
    says = (
        f"{claims.allreduces} all-reduces of {claims.allreduce_us:g} µs take "
        f"{spent_s / step_s:.1f} × the plain step of {step_s * 1e3:.1f} ms, into which {fits}"
    )
    yield Finding(
        "all-reduces in a plain step",
        "the all-reduces were timed in plain decoding, as latency",
        f"{claims.allreduces} × {claims.allreduce_us:g} µs = {spent_s * 1e3:.1f} ms of a step of "
        f"1/{claims.plain_tok_s:g} = {step_s * 1e3:.2f} ms; less {reading_s * 1e3:.2f} ms of "
        f"reading at full bandwidth leaves {most_us:.0f} µs each, {likely_us:.0f} µs at "
        f"{share:.0%} of it",
        "compatible" if claims.allreduce_us <= most_us else "excluded",
        fits if claims.allreduce_us <= most_us else says,
        {
            "step_ms": step_s * 1e3,
            "allreduces_ms": spent_s * 1e3,
            "times_the_step": spent_s / step_s,
            "most_us_full_bandwidth": most_us,
            "most_us": likely_us,
        },
    )


def share_of_verification(claims: Claims) -> Iterator[Finding]:
    """Do the claimed share and the claimed all-reduces say the same?"""
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


def room_for_rows(claims: Claims, setting: Setting) -> Iterator[Finding]:
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
        around = ", ".join(
            f"{rows} rows {ideal(setting).step(rows).total_s * 1e3:.1f} ms"
            for rows in (most, most + 1)
            if rows
        )
        fit = f"at most {most} rows fit, {fewer} at {share:.0%} of the bandwidth"
        yield Finding(
            f"room for rows beside {name}",
            f"{name} belong to a verification; no latency of kernels at all",
            f"{claims.verify_ms:g} − {spent_ms:.1f} = {left_ms:.1f} ms; reading takes, at full "
            f"bandwidth: {around}",
            "implied" if most else "excluded",
            fit if most else f"beside {name} not even one row fits into {claims.verify_ms:g} ms",
            {"left_ms": left_ms, "rows_full_bandwidth": most, "rows": fewer},
        )


def slower_attempt(attempt: Attempt, claims: Claims, setting: Setting) -> Iterator[Finding]:
    """A slower all-reduce: could the link's bandwidth explain it?"""
    if attempt.plain_tok_s is None or claims.plain_tok_s is None:
        return
    number = claims.allreduces or exchanges(setting)
    if not number:
        return
    more_s = (1 / attempt.plain_tok_s - 1 / claims.plain_tok_s) / number
    if attempt.outcome in ("slower", "faster") and (more_s > 0) != (attempt.outcome == "slower"):
        yield _contrary(attempt, claims.plain_tok_s)
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
        "implied",
        f"contention would have to be {more_s / wire_s:.0f} × to explain it: look for peer access "
        "through system memory instead"
        if more_s > _TIMES_TOO_MUCH * wire_s
        else "the link's bandwidth can explain it",
        {"more_us": more_s * 1e6, "wire_us": wire_s * 1e6, "times": more_s / wire_s},
    )


def _contrary(attempt: Attempt, plain_tok_s: float) -> Finding:
    return Finding(
        f"{attempt.name}: {attempt.outcome}",
        "both speeds are of plain decoding",
        f"{attempt.plain_tok_s:g} tok/s against {plain_tok_s:g}",
        "differs",
        f"{attempt.name} is said to be {attempt.outcome}, and its speed says otherwise",
        {"plain_tok_s": attempt.plain_tok_s or 0.0},
    )
