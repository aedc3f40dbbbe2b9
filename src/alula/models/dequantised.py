"""Dequantised weights of GGUF files, kept in the cache so that a second start is fast.

The kept file is an ordinary safetensors file in fp32 under Hugging Face names; the GGUF's
metadata lies beside it as JSON, so that a second start parses no GGUF at all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from alula.errors import MachineError, ModelError
from alula.models.config import read_json
from alula.models.gguf_file import GgufWeights
from alula.models.home import cache_folder, cache_home, need_space, whole_file
from alula.models.progress import Progress
from alula.models.safetensors_file import SafetensorsWeights
from alula.models.weights import WeightSource

_FOLDER = "dequantised"
_FORMAT = "alula-dequantised-1"
_FINGERPRINT_BYTES = 16 << 20


class Dequantised(NamedTuple):
    """A GGUF file's metadata and its weights in fp32."""

    metadata: Mapping[str, Any]
    weights: WeightSource


def fingerprint(path: Path) -> str:
    """What tells one GGUF file from another without reading it whole: 64 hexadecimal digits.

    Size, time of change and the first 16 MiB, which hold the header and the first tensors.
    """
    stat = path.stat()
    digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def find(key: str, notes: list[str]) -> Dequantised | None:
    """What was kept under `key`; damaged files are noted and count as none."""
    path = _path(key)
    if not path.is_file():
        return None
    try:
        weights = SafetensorsWeights([path])
        if weights.metadata.get("format") == _FORMAT:
            return Dequantised(read_json(path.with_suffix(".json")), weights)
        why = "of another version"
    except ModelError as error:
        why = error.why
    notes.append(f"the kept weights {path} are made again: {why}")
    return None


def keep(key: str, weights: GgufWeights, progress: Progress, notes: list[str]) -> WeightSource:
    """Keep `weights` under `key` and return what was kept.

    Where that is impossible the weights themselves are returned, and a note says why.
    """
    try:
        _write(_path(key), weights, progress)
        return SafetensorsWeights([_path(key)])
    except MachineError as fault:
        notes.append(f"dequantised weights are not kept: {fault.what} ({fault.why}); {fault.fix}")
        return weights


def _write(path: Path, weights: GgufWeights, progress: Progress) -> None:
    """The metadata first: once the weights are there, both are."""
    header, size = _header(weights)
    need_space(cache_folder(_FOLDER), 2 * size, "keep dequantised weights and leave as much free")
    metadata = json.dumps(dict(weights.metadata)).encode()
    with whole_file(path.with_suffix(".json"), len(metadata), "keep a model's metadata") as file:
        file.write(metadata)
    with (
        whole_file(path, size, "keep dequantised weights") as file,
        progress("dequantising", size) as task,
    ):
        file.write(header)
        for name in sorted(weights.names()):
            file.write(weights.get(name).numpy().data)
            task.advance(4 * math.prod(weights.shape(name)))


def _header(weights: GgufWeights) -> tuple[bytes, int]:
    """The safetensors header of the weights in fp32, and the size of the whole file."""
    entries: dict[str, Any] = {"__metadata__": {"format": _FORMAT}}
    end = 0
    for name in sorted(weights.names()):
        shape = weights.shape(name)
        begin, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + end


def _path(key: str) -> Path:
    return cache_home() / _FOLDER / f"{key}.safetensors"
