"""Reading one description of a model: typed, and refusing what is missing or malformed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from alula.errors import ModelError

_FIX = "use the model as its maker published it"
_LARGEST = 2**31 - 1


class Fields:
    """A mapping with a name, read by key."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = values
        self.origin = origin

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def raw(self, key: str) -> Any:
        """The value as it stands, None where there is none."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number above zero, of at most 31 bits."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
            self._malformed(key, value, f"a whole number from 1 to {_LARGEST}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._required(key, default)
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if not known or not 0 < value <= sys.float_info.max:
            self._malformed(key, value, "a finite number above zero")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            self._malformed(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._required(key, default)
        if not isinstance(value, str):
            self._malformed(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """No or several strings."""
        value = self._values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            self._malformed(key, value, "a list of strings")
        return tuple(value)

    def token_ids(self, key: str) -> frozenset[int]:
        """No, one or several token ids."""
        value = self._values.get(key)
        if value is None:
            return frozenset()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            self._malformed(key, value, "a token id or a list of them")
        return frozenset(ids)

    def mapping(self, key: str) -> Fields | None:
        """A nested mapping, None where there is none."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self._malformed(key, value, "a group of settings")
        return Fields(value, f"{self.origin} ({key})")

    def only(self, *known: str) -> None:
        """Refuse every key that is not in `known`."""
        for key in self._values:
            if key not in known and self._values[key] is not None:
                raise self.unsupported(key, self._values[key], f"known here: {', '.join(known)}")

    def unsupported(self, key: str, value: object, supported: str) -> ModelError:
        """The refusal of a setting, by name."""
        return ModelError(
            f"alula does not run models with {key} = {value!r}",
            f"{self.origin} asks for it; {supported}",
            "choose a model without it",
        )

    def _required(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(
                "the model's description is incomplete", f"{self.origin} has no `{key}`", _FIX
            )
        return value

    def _malformed(self, key: str, value: object, wanted: str) -> NoReturn:
        raise ModelError(
            "the model's description is malformed",
            f"`{key}` in {self.origin} is {value!r}, not {wanted}",
            _FIX,
        )


def unknown_architecture(name: object, origin: str, supported: tuple[str, ...]) -> ModelError:
    """The refusal of a model type, with what would have been accepted."""
    return ModelError(
        f"unknown architecture {name!r}",
        f"{origin} names it; alula runs {', '.join(supported)} (dense decoders)",
        "choose a model of one of these architectures",
    )
