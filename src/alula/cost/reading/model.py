"""From what a person types to a model's shape."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from alula.cost.reading import gguf_shape
from alula.cost.reading.config import model_shape
from alula.cost.shape import ModelShape
from alula.errors import ModelError

_MOST_EXPERTS = 4096
"""Beyond any published model; a damaged description names absurd numbers."""


def known_models() -> list[str]:
    """Models known by name."""
    folder = files("alula.cost") / "data" / "models"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir())


def find_model(name: str) -> ModelShape:
    """A known name, a GGUF file, a config.json or the folder it lies in.

    Raises ModelError for anything else, naming what is possible.
    """
    known = known_models()
    if name in known:
        text = (files("alula.cost") / "data" / "models" / f"{name}.json").read_text("utf-8")
        return model_shape(json.loads(text), name)
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ModelError(
            f"there is no model {name!r}",
            "it is no known name, and no such file or folder exists",
            f"name a config.json, the folder it lies in, a .gguf file, or {', '.join(known)}",
        )
    shape = gguf_shape.model_shape(path) if path.suffix == ".gguf" else _from_config(path)
    if shape.experts is not None and shape.experts.count > _MOST_EXPERTS:
        raise ModelError(
            f"{shape.name} has {shape.experts.count:,} experts in a layer",
            f"alula prices up to {_MOST_EXPERTS:,}",
            "use the model as its maker published it",
        )
    return shape


def _from_config(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}", str(error), "check the file") from error
    if not isinstance(config, dict):
        raise ModelError(f"cannot read {path}", "it holds no JSON object", "name a config.json")
    return model_shape(config, path.parent.resolve().name)
