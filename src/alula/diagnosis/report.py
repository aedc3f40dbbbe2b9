"""The doctor's report as facts: the few of its fields that decide between causes.

Anything missing stays unknown; a field of an unexpected form is passed over, never guessed from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from alula.diagnosis.facts import Facts, Value
from alula.errors import UsageError
from alula.machine.gate import Gate, GateVerdict, Layer

_LARGEST = 64 << 20
_JIT = "FlashInfer"
"""The compiler at run time whose nvcc matters to the gates; torch extensions pick the same."""


def load_report(path: Path) -> Mapping[str, Any]:
    """A report as data. Raises `UsageError` for a file that is none."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than any report")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the report {path} cannot be read",
            str(error),
            "write one with alula doctor --json > report.json",
        ) from error
    return data


def facts_of(report: Mapping[str, Any]) -> Facts:
    """The facts of a report."""
    machine, software = _mapping(report, "machine"), _mapping(report, "software")
    found = {
        **_packages(software),
        **_lacking(software),
        **_loading(software),
        **_toolkit(software),
        **_gpus(machine),
        **_links(machine),
        **_driver(machine),
    }
    return Facts({name: value for name, value in found.items() if value and all(value)})


def gates_of(report: Mapping[str, Any]) -> tuple[Gate, ...]:
    """The gates that the doctor found: those of components, and the chains it was asked for."""
    features = _mapping(report, "features")
    entries = [*_entries(report, "gates")]
    entries += [entry for name in features for entry in _entries(features, name)]
    return tuple(gate for entry in entries if (gate := _gate(entry)))


def _gate(entry: Mapping[str, Any]) -> Gate | None:
    texts = {name: _text(entry, name) for name in ("component", "feature", "predicate")}
    rest = {name: _text(entry, name) for name in ("observed", "evidence", "opened_in")}
    try:
        layer, verdict = Layer(_text(entry, "layer")), GateVerdict(_text(entry, "verdict"))
    except ValueError:
        return None
    return Gate(**texts, layer=layer, verdict=verdict, **rest)


def _gpus(machine: Mapping[str, Any]) -> dict[str, Value]:
    gpus = [gpu for gpu in _entries(machine, "gpus") if gpu.get("visible", True)]
    capabilities = [_text(gpu, "capability") for gpu in gpus]
    capabilities = [text for text in capabilities if re.fullmatch(r"\d{1,2}\.\d", text)]
    distinct = tuple(sorted(set(capabilities)))
    return {
        "gpus": (str(len(gpus)),) if gpus else (),
        "capability": distinct,
        "capability.major": tuple(sorted({text.partition(".")[0] for text in distinct})),
        "capability.target": tuple(_target(text) for text in distinct),
    }


def _target(capability: str) -> str:
    """What compilers are asked for: arch-specific code from 9.0 on (triton's own rule)."""
    number = capability.replace(".", "")
    return f"sm_{number}a" if int(number) >= 90 else f"sm_{number}"


def _links(machine: Mapping[str, Any]) -> dict[str, Value]:
    switched = machine.get("nvswitch")
    joined = "nvswitch" if switched is True else _text(machine, "interconnect")
    access = {
        _text(link, way) for link in _entries(machine, "links") for way in ("read", "write")
    } - {""}
    p2p = "" if not access else "all" if access == {"ok"} else "none" if "ok" not in access else ""
    return {"links": (joined,), "p2p": (p2p,)}


def _driver(machine: Mapping[str, Any]) -> dict[str, Value]:
    driver = _mapping(machine, "driver")
    cuda = _text(driver, "cuda")
    return {
        "driver": (_text(driver, "version"),),
        "driver.cuda": (cuda,),
        "driver.cuda.major": (cuda.partition(".")[0],),
    }


def _toolkit(software: Mapping[str, Any]) -> dict[str, Value]:
    found = (jit for jit in _entries(software, "jits") if _text(jit, "name") == _JIT)
    version = _text(_mapping(next(found, {}), "toolkit"), "version")
    return {"nvcc": (version,)}


def _packages(software: Mapping[str, Any]) -> dict[str, Value]:
    packages = _mapping(software, "packages")
    found: dict[str, Value] = {canonical(name): (_text(packages, name),) for name in packages}
    for component in _entries(software, "components"):
        name, version = canonical(_text(component, "name")), _text(component, "version")
        found[name] = (version,)
        if name == "torch":
            found |= torch_cuda_of(f"+{_text(component, 'variant')}") or torch_cuda_of(version)
    nccl = [found[name] for name in found if re.fullmatch(r"nvidia-nccl-cu\d{2}", name)]
    return found | ({"nccl": nccl[0]} if len(nccl) == 1 else {})


def _lacking(software: Mapping[str, Any]) -> dict[str, Value]:
    """What libraries ask for and the environment does not offer."""
    missing = [
        entry
        for component in _entries(software, "components")
        for entry in _entries(component, "missing")
    ]
    kinds = {"torch.lacks": "torch_symbols", "nccl.lacks": "nccl_symbols", "lacks": "sonames"}
    return {
        fact: tuple(sorted({text for entry in missing for text in _texts(entry, kind)}))
        for fact, kind in kinds.items()
    }


def _loading(software: Mapping[str, Any]) -> dict[str, Value]:
    """What the driver makes of the device code, and the packages that hold none for a GPU."""
    verdicts: dict[str, set[str]] = {}
    for entry in _entries(software, "loading"):
        verdicts.setdefault(_text(entry, "component"), set()).add(_text(entry, "verdict"))
    return {
        "loading": tuple(sorted({verdict for each in verdicts.values() for verdict in each})),
        "imageless": tuple(sorted(name for name, each in verdicts.items() if each == {"none"})),
    }


def torch_cuda_of(version: str) -> dict[str, Value]:
    """The CUDA that torch was built for, where its version says it: 13.0 of 2.9.1+cu130."""
    match = re.search(r"\+cu(\d{2})(\d)\b", version)
    return (
        {"torch.cuda": (f"{match[1]}.{match[2]}",), "torch.cuda.major": (match[1],)}
        if match
        else {}
    )


def canonical(name: str) -> str:
    """The one spelling of a package's name, as the packaging specifications define it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(data: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    entries = data.get(name)
    if isinstance(entries, list):
        yield from (entry for entry in entries if isinstance(entry, dict))


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    values = data.get(name)
    return [text for text in values if isinstance(text, str)] if isinstance(values, list) else []
