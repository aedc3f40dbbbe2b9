"""The header of a GGUF file, without its tensors' contents.

The `gguf` package reads it too, in two seconds for a vocabulary of 49,000: an estimate should
take less. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from alula.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_MOST = 1 << 26  # entries or bytes of one value: a damaged file names absurd numbers


class TensorInfo(NamedTuple):
    """One tensor of the file: its elements and ggml's number of its type."""

    name: str
    elements: int
    kind: int


class Header(NamedTuple):
    """Metadata, arrays as their lengths, and tensors."""

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file. Raises ModelError for another file or a damaged one."""
    try:
        with path.open("rb") as file:
            return _header(file, path)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise _damaged(path, "its header ends early or holds what no header holds") from error
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error


def _header(file: BinaryIO, path: Path) -> Header:
    if file.read(4) != b"GGUF":
        raise _damaged(path, "it does not begin with GGUF")
    version, tensors, entries = _unpack(file, "IQQ")
    if version not in (2, 3):
        raise _damaged(path, f"its version is {version}; 2 and 3 are known")
    if max(tensors, entries) > _MOST:
        raise _damaged(path, f"it names {tensors} tensors and {entries} entries")
    metadata = {}
    for _ in range(entries):
        key = _string(file)
        metadata[key] = _value(file, _unpack(file, "I")[0])
    return Header(metadata, tuple(_tensor(file) for _ in range(tensors)))


def _tensor(file: BinaryIO) -> TensorInfo:
    name = _string(file)
    (dimensions,) = _unpack(file, "I")
    sizes = _unpack(file, f"{_bounded(dimensions)}Q")
    kind, _offset = _unpack(file, "IQ")
    return TensorInfo(name, math.prod(sizes), kind)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])[0]
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        raise struct.error(f"unknown type {kind}")
    element, length = _unpack(file, "IQ")
    _skip(file, element, _bounded(length))
    return range(length)


def _skip(file: BinaryIO, element: int, length: int) -> None:
    """Pass over an array: what it holds costs nothing at decoding."""
    if element in _SCALARS:
        file.seek(length * struct.calcsize("<" + _SCALARS[element]), 1)
        return
    for _ in range(length):
        _value(file, element)


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    data = file.read(_bounded(length))
    if len(data) < length:
        raise struct.error("short")
    return data.decode("utf-8", "replace")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))


def _bounded(number: int) -> int:
    if number > _MOST:
        raise struct.error("absurd")
    return number


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"cannot read {path} as a GGUF file", why, "download the file again")
