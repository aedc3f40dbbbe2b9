"""What would change the answer, what to measure next, and what was not given."""

from __future__ import annotations

from alula.assess.change import Target
from alula.assess.evidence import CLAIMS, Ledger, Row, Section
from alula.assess.gains import Gains
from alula.assess.nearby import flips
from alula.assess.situation import Situation


def would_change(target: Target, situation: Situation, ledger: Ledger) -> Section:
    """Under which facts the answer would be another one."""
    rows = []
    for flip in flips(target, situation.facts):
        gate = flip.gate
        facts = " and ".join(each.said(situation.facts) for each in flip.conditions)
        key = ledger.cite(f"{gate.feature}: {gate.predicate}, closed if {facts}", gate.evidence)
        rows.append(
            Row((f"{facts}", f"it opens {gate.component}, {gate.layer}", gate.feature), (key,))
        )
    return Section("What would change the answer", ("if", "then", "of"), tuple(rows))


def measurements(gains: Gains, situation: Situation, ledger: Ledger) -> Section:
    """The next two, and what they should show."""
    told = [(*each, CLAIMS) for each in _deciding(gains)]
    told = told or [(*each, "alula estimate") for each in gains.predicted]
    if not situation.facts.get("p2p"):
        told.append(("alula doctor --probe p2p", "peer access works", "the doctor's report"))
    told.append(("a plain run, three times", "the baseline of everything else", "docs/assess.md"))
    rows = tuple(
        Row((what, expect), (ledger.cite(f"{what}: {expect}", source),))
        for what, expect, source in told[:2]
    )
    return Section("The next two measurements", ("measure", "expect"), rows)


def _deciding(gains: Gains) -> list[tuple[str, str]]:
    """What tells two explanations of the claims apart."""
    stories = gains.check.stories if gains.check else ()
    if len(stories) < 2:
        return []
    launches = (
        f"if {each.name}: {each.verify_s[1] * 1e3:.0f} and {each.verify_s[16] * 1e3:.0f} ms"
        for each in stories
    )
    exchanges = (
        f"if {each.name}: {each.allreduce_s[1] * 1e6:.0f} and {each.allreduce_s[16] * 1e6:.0f} µs"
        for each in stories
    )
    return [
        ("a launch with 1 row and with 16 rows", "; ".join(launches)),
        ("one all-reduce of each launch inside a graph", "; ".join(exchanges)),
    ]


def lacking(situation: Situation, ledger: Ledger) -> Section:
    """What was not given, and what it would have decided."""
    facts = situation.facts
    told = (
        (not situation.judged, "attempts", "with --attempts", "which failures it has to unblock"),
        (
            situation.case is None,
            "claims",
            "with --claims",
            "which of your figures exclude each other",
        ),
        (not situation.model, "the model", "with --model", "what there is to gain"),
        (
            situation.tok_s is None,
            "a measured speed",
            "with a baseline",
            "what the gain is measured by",
        ),
        (
            not facts.get("p2p"),
            "peer access",
            "with alula doctor --probe p2p",
            "if peers are reached",
        ),
        (not facts.get("nvcc"), "the toolkit", "with alula doctor", "which nvcc compiles kernels"),
        (not facts.get("capability"), "the GPUs", "with --machine", "everything"),
    )
    rows = tuple(
        Row((what, given, decides), (ledger.cite(f"not known: {what}", situation.report),))
        for is_lacking, what, given, decides in told
        if is_lacking
    )
    return Section("What is lacking", ("not known", "given", "it would tell"), rows)
