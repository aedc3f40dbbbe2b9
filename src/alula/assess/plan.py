"""An answer as the sections of a plan that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from alula.assess.answer import Answer
from alula.assess.living import DECISIONS
from alula.assess.nearby import flips
from alula.assess.sections import evidence
from alula.assess.situation import Situation
from alula.assess.telling import table
from alula.cost.telling.pages import markdown_block

_CHECKS = {
    "nvcc": "nvcc --version",
    "torch.cuda": 'python -c "import torch; print(torch.version.cuda)"',
    "capability": "nvidia-smi --query-gpu=compute_cap --format=csv",
    "driver": "nvidia-smi --query-gpu=driver_version --format=csv",
    "links": "nvidia-smi topo -m",
    "gpus": "nvidia-smi --list-gpus",
}
_BY_HEADING = {
    "Hypotheses": ("The most it can gain", "What one could do, by gain × probability ÷ price"),
    "Tried": ("What was tried", "What it opens and closes", "What stays closed"),
    "Price": ("Its price",),
}
_NEXT = ("How", "The next two measurements", "What is lacking")


def plan_sections(answer: Answer) -> dict[str, str]:
    """Headings and their Markdown, in order."""
    found = {"Situation": _situation(answer)}
    found |= {heading: _tables(answer, titles) for heading, titles in _BY_HEADING.items()}
    found[DECISIONS] = "\n".join(("These stand as long as this holds:\n", *_assumptions(answer)))
    found["Next steps"] = _tables(answer, _NEXT)
    found["Evidence"] = markdown_block(table(evidence(answer.ledger)))
    return found


def _situation(answer: Answer) -> str:
    situation = answer.situation
    told = [str(answer.line), *_known(situation)]
    change = _tables(answer, ("The change",))
    return "\n\n".join((told[0], "\n".join(f"- {line}" for line in told[1:]), change))


def _known(situation: Situation) -> Iterator[str]:
    facts = situation.facts
    gpus, links = facts.get("gpus") or "no", facts.get("links") or "unknown links"
    yield f"{gpus} GPUs of {facts.get('capability') or 'unknown capability'}, {links}"
    yield f"driver {facts.get('driver') or 'not known'}, nvcc {facts.get('nvcc') or 'not known'}"
    yield f"from {situation.report}"
    if situation.model:
        yield f"model {situation.model}, from {situation.model_from}"
    if situation.tok_s is not None:
        yield f"{situation.tok_s:g} tok/s without speculation"
    if situation.attempts:
        yield f"{len(situation.judged)} attempts, from {situation.attempts}"
    if situation.case is not None:
        yield f"claims, from {situation.claims}"


def _tables(answer: Answer, titles: Sequence[str]) -> str:
    by_title = {section.title: section for section in answer.sections}
    chosen = (by_title[title] for title in titles if title in by_title)
    return "\n\n".join(markdown_block(table(section)) for section in chosen)


def _assumptions(answer: Answer) -> Iterator[str]:
    """The facts that would change the answer, each with the command that checks it."""
    facts, told = answer.situation.facts, dict[str, None]()
    for flip in flips(answer.target, answer.situation.facts):
        for condition in flip.conditions:
            name = condition.name
            now = facts.get(name) or "not known"
            check = _CHECKS.get(name, f"pip show {name}" if "." not in name else "alula doctor")
            told[f"- {name} is {now}, not {condition.said(facts)}: check with `{check}`"] = None
    for option in answer.ranked:
        if option.is_free and 0 < option.probability < 1:
            told[f"- {option.name}: {option.why}: check with `alula doctor --probe p2p`"] = None
    yield from told
