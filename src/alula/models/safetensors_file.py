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
    """A `WeightSource` over open files."""

    def __init__(self, files: list[Path]) -> None:
        """Open the files. Raises ModelError for a damaged one, and for a name given twice."""
        self._homes: dict[str, tuple[Path, Any]] = {}
        self.metadata: dict[str, str] = {}
        for path in files:
            handle = _open(path)
            self.metadata.update(handle.metadata() or {})
            names = handle.keys()
            for name in names:
                if name in self._homes:
                    first = self._homes[name][0].name
                    raise _damaged(path, f"{name} is also in {first}")
                self._homes[name] = (path, handle)

    def names(self) -> frozenset[str]:
        """All tensors."""
        return frozenset(self._homes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one, without reading it."""
        return tuple(self._homes[name][1].get_slice(name).get_shape())

    def get(self, name: str) -> Tensor:
        """Read one to the CPU."""
        path, handle = self._homes[name]
        try:
            tensor: Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise _damaged(path, f"{name}: {error}") from error
        return tensor


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
