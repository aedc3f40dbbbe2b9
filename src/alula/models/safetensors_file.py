"""Weights in safetensors files: one file, or several under an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from alula.errors import ModelError
from alula.models.config import read_json

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsWeights:
    """A `WeightSource` over one or more files, none of which is held open.

    Opening a file maps it, and what was read stays in memory until it is closed; opened for one
    tensor at a time, the files never count as a second copy of the model.
    """

    def __init__(self, files: list[Path]) -> None:
        """List the files' tensors. Raises ModelError for a damaged file or a name given twice."""
        self._homes: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, str] = {}
        for path in files:
            self._list(path)

    def names(self) -> frozenset[str]:
        """All tensors."""
        return frozenset(self._homes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one, without reading it."""
        return self._shapes[name]

    def get(self, name: str) -> Tensor:
        """Read one to the CPU."""
        with _open(self._homes[name]) as file:
            try:
                mapped: Tensor = file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise _damaged(self._homes[name], f"{name}: {error}") from error
            return mapped.clone()

    def _list(self, path: Path) -> None:
        with _open(path) as file:
            self.metadata.update(file.metadata() or {})
            names = file.keys()
            for name in names:
                if name in self._homes:
                    raise _damaged(path, f"{name} is also in {self._homes[name].name}")
                self._homes[name] = path
                self._shapes[name] = tuple(file.get_slice(name).get_shape())


def open_folder(folder: Path) -> SafetensorsWeights:
    """The weights of a folder in Hugging Face layout. Raises ModelError."""
    if (folder / _INDEX).is_file():
        return _open_shards(folder)
    if (folder / _SINGLE).is_file():
        return SafetensorsWeights([folder / _SINGLE])
    raise ModelError(
        f"the folder {folder} holds no weights alula can read",
        f"it has neither {_SINGLE} nor {_INDEX}",
        "choose a model published as safetensors or GGUF",
    )


def _open_shards(folder: Path) -> SafetensorsWeights:
    index = folder / _INDEX
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, Mapping) or not all(isinstance(v, str) for v in mapping.values()):
        raise _damaged(index, "its `weight_map` does not map tensors to files")
    shards = sorted(set(mapping.values()))
    for shard in shards:
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise _damaged(index, f"it names {shard}, which does not lie beside it")
    weights = SafetensorsWeights([folder / shard for shard in shards])
    if lost := sorted(mapping.keys() - weights.names()):
        raise _damaged(index, f"{lost[0]} is not in {mapping[lost[0]]}")
    return weights


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path} is damaged or not what its name says", why, "download the model again"
    )
