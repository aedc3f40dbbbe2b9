"""The rows of a report that show what the components hold and what each GPU does with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = tuple[str, ...]


def component_rows(software: dict[str, Any], capabilities: list[str]) -> list[Row]:
    """A row for each component and below it one for each library with device code."""
    loading = {
        (each["component"], each["library"], each["capability"]): each
        for each in software["loading"]
    }
    rows: list[Row] = []
    for component in software["components"]:
        blank = ("",) * len(capabilities)
        rows.append((component["name"], component["version"], component["variant"], "", *blank))
        shown = set[str]()
        for library in _with_code(component):
            verdicts = tuple(
                _loading(loading.get((component["name"], library["path"], capability)))
                for capability in capabilities
            )
            row = (f"  {Path(library['path']).name}", "", "", _targets(library), *verdicts)
            # A package may hold the same library several times.
            if (key := json.dumps(row)) not in shown:
                shown.add(key)
                rows.append(row)
    return rows


def _with_code(component: dict[str, Any]) -> list[dict[str, Any]]:
    held = [each for each in component["libraries"] if each["containers"] or each["unknown"]]
    return held if component["cubins"] is None else [*held, component["cubins"]]


def _targets(library: dict[str, Any]) -> str:
    """The architectures of a library; PTX with its version; what could not be read, and why."""
    found: dict[str, None] = {}
    for signature in library["containers"]:
        found.update(dict.fromkeys(signature.split()))
    cubins = sorted((t.removeprefix("sm_") for t in found if t.startswith("sm_")), key=_order)
    ptx = sorted(
        (t.removeprefix("compute_") for t in found if t.startswith("compute_")), key=_order
    )
    lto = sorted((t.removeprefix("lto_") for t in found if t.startswith("lto_")), key=_order)
    parts = [" ".join(cubins)]
    parts += [f"PTX {', '.join(text.replace('@', ' of ISA ') for text in ptx)}"] if ptx else []
    parts += [f"LTO {' '.join(lto)}"] if lto else []
    parts += [f"unknown: {reason}" for reason in library["unknown"]]
    return "; ".join(filter(None, parts))


def _order(target: str) -> tuple[int, str]:
    digits = target.partition("@")[0].rstrip("af")
    return (int(digits) if digits.isdigit() else 0), target


def _loading(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    total = sum(found["containers"].values())
    best = found["containers"][found["verdict"]]
    share = "" if best == total else f" {best}/{total}"
    return f"{found['verdict']}{share}"
