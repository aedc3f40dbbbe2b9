"""Facts as JSON and back. What comes back is checked field by field: a report is an input."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
_LARGEST = 1 << 63


def to_json(facts: Any) -> Any:
    """A dataclass, or a row of them, as plain values."""
    if isinstance(facts, tuple | list):
        return [to_json(fact) for fact in facts]
    return asdict(facts)


def from_json(kind: type[T], value: object, where: str = "report") -> T:
    """A dataclass from plain values; ValueError names the field that does not fit.

    Fields that the dataclass does not know are left out: a newer alula may have written them.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is not an object")
    if not is_dataclass(kind):
        raise TypeError(f"{kind} is no dataclass")
    for needed in fields(kind):
        optional = needed.default is not MISSING or needed.default_factory is not MISSING
        if not optional and needed.name not in value:
            raise ValueError(f"{where}.{needed.name} is missing")
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            field.name: _field(hints[field.name], value[field.name], f"{where}.{field.name}")
            for field in fields(kind)
            if field.name in value
        }
    )


def _field(hint: Any, value: object, where: str) -> object:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inside:
            return None
        return _field(next(kind for kind in inside if kind is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} is not a list")
        return tuple(_field(inside[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is not an object")
        return {str(k): _field(inside[1], item, f"{where}.{k}") for k, item in value.items()}
    return _plain(hint, value, where)


def _plain(kind: Any, value: object, where: str) -> object:
    if is_dataclass(kind):
        return from_json(typing.cast(type[Any], kind), value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where} is {value!r}, not of type {kind.__name__}")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError(f"{where} is larger than any such number")
    return value
