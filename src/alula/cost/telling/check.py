"""The check of a case as a document."""

from __future__ import annotations

from dataclasses import asdict

from alula.cost.claims.check import Check, unchecked
from alula.cost.claims.finding import EXTRA_MS
from alula.cost.claims.implied import SHORT_CHAIN
from alula.cost.claims.stories import Story
from alula.cost.draft import chain
from alula.cost.telling.document import Chart, Document, Mark, Table
from alula.cost.units import us


def tell_check(found: Check) -> Document:
    """The findings, the explanations and the break-even chart."""
    findings = Table(
        "What the claims say about each other",
        ("", "claim", "if", "arithmetic", "then"),
        tuple((f.outcome, f.name, f.reading, f.arithmetic, f.says) for f in found.findings),
        wordy=True,
    )
    blocks: list[Table | Chart] = [findings]
    if found.stories:
        blocks.append(_predictions(found.stories))
    if (drawn := _drawn(found)) is not None:
        blocks.append(drawn)
    setting = found.setting
    notes: tuple[str, ...] = (
        f"All-reduces where none are claimed: {setting.speed.allreduce.name} "
        f"({setting.speed.allreduce.source}).",
        f"Assumed: {found.case.assumed.draft_steps or 'no'} draft steps, "
        f"{setting.host_s * 1e3:g} ms of host time in a round, context {setting.context}.",
    )
    if wanting := unchecked(found.case.claims, len(found.case.attempts)):
        notes += (f"Not checked: {'; '.join(wanting)}.",)
    return Document(found.verdict(), tuple(blocks), notes, _data(found))


def _predictions(told: tuple[Story, ...]) -> Table:
    rows = []
    for count in told[0].verify_s:
        cells = (
            f"{story.verify_s[count] * 1e3:.1f} ms, {us(story.allreduce_s[count])}"
            for story in told
        )
        rows.append((str(count), *cells))
    headers = (f"{story.name} ({story.rows} rows)" for story in told)
    return Table(
        "What each explanation predicts: a launch, and one all-reduce of its size",
        ("rows", *headers),
        tuple(rows),
    )


def _drawn(found: Check) -> Chart | None:
    claims = found.case.claims
    if claims.plain_tok_s is None or claims.verify_ms is None or not claims.speculative_tok_s:
        return None
    marks = [
        Mark(
            f"claimed, + {extra:g} ms" if extra else "claimed, drafting free",
            claims.verify_ms + extra,
            claims.speculative_tok_s * (claims.verify_ms + extra) * 1e-3,
        )
        for extra in EXTRA_MS
    ]
    short = found.setting.round(chain(SHORT_CHAIN)).total_s * 1e3
    marks.append(Mark(f"chain:{SHORT_CHAIN}, break-even", short, claims.plain_tok_s * short * 1e-3))
    return Chart("Break-even: above the thick line it pays", claims.plain_tok_s, tuple(marks))


def _data(found: Check) -> dict[str, object]:
    return {
        "findings": [asdict(finding) for finding in found.findings],
        "stories": [asdict(story) for story in found.stories],
        "decides": found.decides,
    }
