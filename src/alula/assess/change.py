"""The change that is asked about: versions before and after, whoever wrote them down."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alula.diagnosis.answer import escaped
from alula.diagnosis.attempts import read_plan
from alula.diagnosis.changes import Change
from alula.diagnosis.facts import Facts
from alula.diagnosis.report import torch_cuda_of
from alula.errors import UsageError

_NAMES = {"cuda": "CUDA", "flashinfer-python": "FlashInfer", "sglang": "SGLang", "vllm": "vLLM"}
_BUILDS = {
    "2.6": ("11.8", "12.4", "12.6"),
    "2.7": ("11.8", "12.6", "12.8"),
    "2.8": ("12.6", "12.8", "12.9"),
    "2.9": ("12.6", "12.8", "12.9", "13.0"),
    "2.10": ("12.6", "12.8", "12.9", "13.0"),
    "2.11": ("12.6", "12.8", "12.9", "13.0"),
    "2.12": ("12.6", "13.0", "13.2"),
    "2.13": ("12.6", "13.0", "13.2"),
}
"""CUDA variants of stable torch. Source: the release matrix in pytorch/test-infra."""
_LARGEST = 64 << 20


@dataclass(frozen=True)
class Target:
    """What is to be installed, and what its author called it."""

    name: str
    changes: tuple[Change, ...]
    download_bytes: int | None = None
    """Of everything, where a lock says it."""
    risks: tuple[str, ...] = ()
    """What the plan itself calls a risk."""
    source: str = "the command line"

    @property
    def title(self) -> str:
        """For people: CUDA 13.0 and FlashInfer 0.6.18."""
        *first, last = map(shown, self.changes)
        listed = f"{', '.join(first)} and {last}" if first else last
        return self.name or listed

    @property
    def is_plural(self) -> bool:
        """Whether its title names several things."""
        return not self.name and len(self.changes) > 1

    def changes_component(self, name: str) -> bool:
        """Whether it brings another version of a component."""
        return any(change.component == name for change in self.changes)

    def without(self, change: Change) -> tuple[Change, ...]:
        """The other changes."""
        return tuple(other for other in self.changes if other != change)


def shown(change: Change) -> str:
    """A change as people say it."""
    return f"{_NAMES.get(change.component, change.component)} {change.version}"


def read_target(texts: Sequence[str], plan: Path | None) -> Target:
    """The change of a command line, of a plan.toml or of a lock, one of them.

    Raises UsageError for none, for both, and for what is not understood.
    """
    if bool(texts) == (plan is not None):
        raise UsageError(
            "a change is named in one place" if texts else "no change was named",
            "CHANGE and --plan both say what to assess",
            "write for example alula assess cuda==13.0, or name a plan with --plan",
        )
    if plan is not None:
        return _from_lock(plan) if plan.suffix == ".json" else _from_plan(plan)
    changes = tuple(map(_parsed, texts))
    named = [change.component for change in changes]
    if twice := next((name for name in named if named.count(name) > 1), ""):
        raise UsageError(
            f"{twice} is changed twice", "it can have one version", "leave one of them out"
        )
    return Target("", changes)


def expanded(changes: Sequence[Change], facts: Facts) -> tuple[Change, ...]:
    """The changes with the torch that comes along.

    Who says CUDA means the stack for it: with `cuda` and no torch named, torch is taken in its
    own version, built for that CUDA, where such a build exists.
    """
    cuda = next((each.version for each in changes if each.component == "cuda"), "")
    if not cuda or any(each.component == "torch" for each in changes):
        return tuple(changes)
    release, version = ".".join(cuda.split(".")[:2]), facts.get("torch").partition("+")[0]
    if release not in _BUILDS.get(".".join(version.split(".")[:2]), ()):
        return tuple(changes)
    return (*changes, Change("torch", f"{version}+cu{release.replace('.', '')}"))


def is_there(change: Change, facts: Facts) -> bool:
    """Whether this version is what there is: 12.8 where 12.8.93 is; of torch the build too."""
    before = version_now(change, facts).partition("+")[0]
    wanted, _, build = change.version.partition("+")
    is_same = before == wanted or before.startswith(f"{wanted}.")
    cuda = torch_cuda_of(change.version).get("torch.cuda", ())
    return is_same and (not build or (bool(cuda) and facts.get("torch.cuda") == cuda[0]))


def version_now(change: Change, facts: Facts) -> str:
    """Of the component, "" where it is not known."""
    return facts.get(fact_of(change))


def fact_of(change: Change) -> str:
    """The name of the fact that a change alters: of the toolkit its compiler."""
    return "nvcc" if change.component == "cuda" else change.component


def _parsed(text: str) -> Change:
    try:
        return Change.parse(text)
    except ValueError as error:
        raise UsageError(
            f"the change {text!r} is not understood",
            str(error),
            "write for example cuda==13.0, driver==590.48.01 or flashinfer-python==0.6.18",
        ) from error


def _from_plan(path: Path) -> Target:
    plan = read_plan(path)
    return Target(escaped(" ".join(plan.name.split())), plan.changes, source=path.name)


def _from_lock(path: Path) -> Target:
    """A lock of `alula stack plan`: its packages and its toolkit, and what they weigh."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than any lock")
        data = json.loads(path.read_text("utf-8"))
        packages = [(each["name"], each["version"], each.get("size")) for each in data["packages"]]
        toolkit = (data.get("toolkit") or {}).get("version")
        changes = [Change.parse(f"{name}=={version}") for name, version, _ in packages]
        changes += [Change("cuda", str(toolkit))] if toolkit else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a lock",
            f"{type(error).__name__}: {error}",
            "write one with alula stack plan, or name a plan.toml",
        ) from error
    sizes = [size for *_, size in packages]
    known = all(type(size) is int for size in sizes)
    return Target(
        _title(packages, toolkit),
        tuple(changes),
        sum(sizes) if known else None,
        tuple(escaped(str(risk)) for risk in data.get("risks", ())),
        path.name,
    )


def _title(packages: Sequence[tuple[Any, ...]], toolkit: Any) -> str:
    """What a lock is about: its CUDA, or the engine it holds."""
    if toolkit and re.fullmatch(r"\d+\.\d+", str(toolkit)):
        return f"CUDA {toolkit}"
    engines = [(name, version) for name, version, _ in packages if name in ("sglang", "vllm")]
    return " and ".join(f"{_NAMES[name]} {version}" for name, version in engines) or "the plan"
