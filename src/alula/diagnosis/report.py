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


def read_report(path: Path) -> Facts:
    """The facts of a saved report. Raises `UsageError` for a file that is none."""
    return facts_of(load_report(path))


def facts_of(report: Mapping[str, Any]) -> Facts:
    """The facts of a report."""
    machine = _mapping(report, "machine") or report
    found = {
        **_packages(report),
        **_gpus(machine),
        **_links(machine),
        **_driver(machine),
        **_toolkits(report),
    }
    return Facts({name: value for name, value in found.items() if all(value) and value})


def gates_of(report: Mapping[str, Any]) -> tuple[Gate, ...]:
    """The gates that the doctor found."""
    return tuple(gate for entry in _entries(report, "gates") if (gate := _gate(entry)))


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
    driver = _mapping(machine, "driver") or {}
    cuda = _text(driver, "cuda")
    return {
        "driver": (_text(driver, "version"),),
        "driver.cuda": (cuda,),
        "driver.cuda.major": (cuda.partition(".")[0],),
    }


def _toolkits(report: Mapping[str, Any]) -> dict[str, Value]:
    for jit in _entries(report, "jits"):
        if _text(jit, "name") == _JIT:
            return {"nvcc": (_text(_mapping(jit, "toolkit") or {}, "version"),)}
    return {}


def _packages(report: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for entry in _entries(report, "components"):
        name, version = canonical(_text(entry, "name")), _text(entry, "version")
        found[name] = (version,)
        if name == "torch":
            found |= _torch_cuda(_text(entry, "cuda")) | torch_cuda_of(version)
        if re.fullmatch(r"nvidia-nccl-cu\d{2}", name):
            found["nccl"] = (version,)
    return found


def torch_cuda_of(version: str) -> dict[str, Value]:
    """The CUDA that torch was built for, where its version says it: 13.0 of 2.9.1+cu130."""
    match = re.search(r"\+cu(\d{2})(\d)\b", version)
    return _torch_cuda(f"{match[1]}.{match[2]}") if match else {}


def _torch_cuda(cuda: str) -> dict[str, Value]:
    return {"torch.cuda": (cuda,), "torch.cuda.major": (cuda.partition(".")[0],)}


def canonical(name: str) -> str:
    """The one spelling of a package's name, as the packaging specifications define it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(data: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    entries = data.get(name)
    if isinstance(entries, list):
        yield from (entry for entry in entries if isinstance(entry, dict))


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = data.get(name)
    return value if isinstance(value, dict) else None


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""
