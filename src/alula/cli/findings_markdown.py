"""Diagnoses as Markdown, for pasting into an issue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from alula.cli.doctor_markdown import cell

_SHORTEST_FENCE = 3


def diagnosis_markdown(found: Mapping[str, Any], title: str = "## alula diagnose") -> str:
    """One diagnosis, given as `answer.as_json` says it."""
    parts = [title, *_cause(found["cause"])]
    parts += _listed("What followed", map(_place, found["cascade"]))
    parts += _listed("Notes", (f"{note['note']}{_where(note)}" for note in found["notes"]))
    return "\n\n".join(parts)


def together_markdown(found: Mapping[str, Any]) -> str:
    """Several attempts, given as `answer.together_json` says them."""
    parts = ["## alula diagnose", f"**{cell(found['verdict'])}**"]
    parts += [diagnosis_markdown(each, f"### {cell(each['name'])}") for each in found["attempts"]]
    shared = [pair for pair in found["pairs"] if pair["same_cause"]]
    parts += _listed("The same cause", (f"{pair['first']}, {pair['second']}" for pair in shared))
    changes = (
        f"{each['change']} unblocks {', '.join(each['unblocks']) or 'none of them'}"
        for each in found["changes"]
    )
    return "\n\n".join([*parts, *_listed("One change alone", changes)])


def _cause(cause: Mapping[str, Any] | None) -> list[str]:
    if cause is None:
        return ["Nothing found that ended the run."]
    meaning = cause["meaning"]
    rows = [
        ("cause", ", ".join(filter(None, (cause["class"], cause["layer"])))),
        ("owner", cause["owner"] or "not known"),
        ("sure", cause["certainty"]),
        *(("because", reason) for reason in cause["because"]),
        ("refuted by", cause["refuted_by"]),
        ("fix", cause["fix"]),
        *((f"behind it ({gate['met']})", _gate(gate)) for gate in cause["gates_behind"]),
    ]
    table = ["| | |", "|---|---|", *(f"| {cell(name)} | {cell(text)} |" for name, text in rows)]
    said = f"**{cell(meaning[:1].upper() + meaning[1:])}.**"
    return [said, "\n".join(table), *_quoted(cause)]


def _gate(gate: Mapping[str, Any]) -> str:
    return f"{gate['component']}, {gate['layer']}: {gate['predicate']}"


def _quoted(cause: Mapping[str, Any]) -> list[str]:
    """The line in a fence that nothing in it can close; inside it nobody is mentioned."""
    if cause["text"] is None:
        return []
    fence = "`" * max(_SHORTEST_FENCE, _longest_run(cause["text"]) + 1)
    return [f"{cell(_where(cause).strip())}\n\n{fence}text\n{cause['text']}\n{fence}"]


def _longest_run(text: str) -> int:
    return max(map(len, "".join(c if c == "`" else " " for c in text).split()), default=0)


def _place(event: Mapping[str, Any]) -> str:
    return f"{event['signature'] or 'an error'}{_where(event)}"


def _where(event: Mapping[str, Any]) -> str:
    if event.get("file") is None:
        return ""
    rank = f", {event['rank']}" if event["rank"] else ""
    return f" ({event['file']}:{event['line']}{rank})"


def _listed(title: str, texts: Iterable[str]) -> list[str]:
    lines = [f"- {cell(text)}" for text in texts]
    return ["\n".join([f"**{title}**", "", *lines])] if lines else []
