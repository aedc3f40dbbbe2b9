"""The rules of packages that ship with alula: data/rules.toml."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from alula.errors import UsageError


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Optional(_Rule):
    """A package that is loaded only where it is asked for."""

    package: str
    loaded_by: str
    source: str


class Spared(_Rule):
    """A library that an engine does without."""

    package: str
    library: str
    """Part of its path."""
    without: str
    on: str = ""
    """The only capability on which that holds; "" for all."""


class Companion(_Rule):
    """A package that is wanted in the version of another."""

    package: str
    of: str
    reason: str


class LeftOver(_Rule):
    """A file that several wheels bring and nothing loads."""

    file: str
    """A path, or a folder with a slash behind it."""
    source: str

    def covers(self, path: str) -> bool:
        """Whether a file is one of these."""
        return path == self.file or (self.file.endswith("/") and path.startswith(self.file))


class StartUp(_Rule):
    """A check of an engine's when it starts a model."""

    package: str
    text: str
    """The name of the line of source that does it."""
    models: Literal["multimodal"]
    with_: str = Field(alias="with")
    needs: str
    of: tuple[str, ...]
    reason: str
    source: str


class Image(_Rule):
    """A container image of an engine."""

    engine: str
    name: str


class Rules(_Rule):
    """All of them."""

    needed: frozenset[str]
    compiling: frozenset[str]
    optional: tuple[Optional, ...]
    spared: tuple[Spared, ...]
    companion: tuple[Companion, ...]
    left_over: tuple[LeftOver, ...]
    start_up: tuple[StartUp, ...]
    image: tuple[Image, ...]
    models: dict[str, str]


@cache
def rules() -> Rules:
    """The rules that ship."""
    text = (files("alula.stack") / "data" / "rules.toml").read_text("utf-8")
    return Rules.model_validate(tomllib.loads(text))


def architecture_of(model: str) -> str:
    """The architecture of a model: a known name, a config.json or its folder, or its own name.

    Raises UsageError for what is none.
    """
    known = rules().models
    if model in known:
        return known[model]
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        try:
            return str(json.loads(path.read_text("utf-8"))["architectures"][0])
        except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise UsageError(
                f"--model {model} names no architecture",
                f"{type(error).__name__}: {error}",
                "name a config.json that has the field architectures",
            ) from error
    if model.isidentifier() and model.endswith(("ForCausalLM", "ForConditionalGeneration")):
        return model
    raise UsageError(
        f"there is no model {model!r}",
        "it is no known name, no config.json, and no architecture",
        f"name one of {', '.join(sorted(known))}, a config.json, or an architecture",
    )
