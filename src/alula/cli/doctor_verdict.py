"""The first line of a report: what stands in the way, and of how much that can be said."""

from __future__ import annotations

from collections import Counter
from typing import Any


def verdicts(report: dict[str, Any]) -> list[str]:
    """What comes first: a line for each feature that was asked for, one for all where none was."""
    if not report["features"]:
        return [_verdict(report)]
    lines = []
    for name, chain in report["features"].items():
        closed = [gate for gate in chain if gate["verdict"] == "closed"]
        unknown = sum(gate["verdict"] == "unknown" for gate in chain)
        if closed:
            layers = ", ".join(dict.fromkeys(gate["layer"] for gate in closed))
            lines.append(f"{name}: {len(closed)} of {len(chain)} gates are closed ({layers})")
        elif unknown:
            lines.append(f"{name}: no gate is closed, {unknown} of {len(chain)} are not known")
        else:
            lines.append(f"{name}: all {len(chain)} gates are open")
    return lines


def _verdict(report: dict[str, Any]) -> str:
    """What the GPUs are, and how much stands in the way of the software."""
    machine, closed = report["machine"], [g for g in report["gates"] if g["verdict"] == "closed"]
    kinds = Counter((gpu["name"], gpu["capability"]) for gpu in machine["gpus"] if gpu["visible"])
    gpus = [f"{count} × {name} ({capability})" for (name, capability), count in kinds.items()]
    layers = Counter(gate["layer"] for gate in closed)
    held = len({gate["component"] for gate in closed})
    known = len(report["software"]["components"])
    found = (
        f"{_gates_are(len(closed))} closed, on {held} of {_components(known)}: "
        + ", ".join(f"{layer} {count}" for layer, count in layers.most_common())
        if closed
        else f"nothing stands in the way of the {_components(known)} found"
    )
    if not gpus:
        return _without_a_gpu(machine, found)
    return f"{' and '.join(gpus)}: {_built_for_a_cpu(report['software'])}{found}"


def _built_for_a_cpu(software: dict[str, Any]) -> str:
    """Builds that no gate is in front of, since they have no code for any GPU."""
    builds = [
        f"{c['name']} {c['version']}" for c in software["components"] if c["variant"] == "cpu"
    ]
    if not builds:
        return ""
    several = len(builds) > 1
    named = _listed(builds) if several else builds[0]
    return f"{named} {'are' if several else 'is'} built for a CPU and can use none; "


def _without_a_gpu(machine: dict[str, Any], found: str) -> str:
    """What could be judged all the same; the rest is not to be taken for sound."""
    hidden = len(machine["gpus"])
    seen = f"No GPU is visible ({hidden} hidden)" if hidden else "No GPU was found"
    checked, unchecked = ["linkage", "requirements"], ["device code", "compilers", "links"]
    (checked if machine["driver"]["version"] else unchecked).append("driver")
    return (
        f"{seen}; by {_listed(checked)} alone {found}; "
        f"not checked without a GPU: {_listed(unchecked)}"
    )


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _gates_are(count: int) -> str:
    return "1 gate is" if count == 1 else f"{count} gates are"


def _components(count: int) -> str:
    return f"{count} component{'' if count == 1 else 's'}"
