"""What is known beside a log: flat, named facts, and whether a condition holds of them.

A condition is a line of the data files: `flashinfer-python < 0.6.17`, `capability.major in 9 10`,
`command has NCCL_ALGO`. It is true, false, or unknown where the fact is not known; nothing is
guessed from a fact's absence.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

Value = tuple[str, ...]
"""What a fact may hold: one value, or several (a machine of unlike GPUs)."""

_CONDITION = re.compile(
    r"(?P<name>\S+) (?P<operator>==|!=|<=|>=|<|>|in|outside|has|lacks|known|unknown)"
    r"(?: (?P<value>.+))?"
)
_UNARY = ("known", "unknown")
_ORDER: dict[str, Callable[[Version, Version], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Facts:
    """Named facts. Values are text; versions and capabilities are compared as versions."""

    values: Mapping[str, Value] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """A fact as text, "" where it is not known."""
        return ", ".join(self.values.get(name, ()))

    def with_values(self, values: Mapping[str, Value]) -> Facts:
        """These facts with others laid over them."""
        return Facts({**self.values, **values})


@dataclass(frozen=True)
class Condition:
    """`name operator value`; in braces stands the name of a fact to be put there instead."""

    name: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises `ValueError` for text that is no condition."""
        match = _CONDITION.fullmatch(text)
        if match is None or (match["value"] is None) != (match["operator"] in _UNARY):
            raise ValueError(f"{text!r} is not of the form 'name operator value'")
        return cls(match["name"], match["operator"], match["value"] or "")

    def holds(self, facts: Facts) -> bool | None:
        """Whether it holds; None where a fact is missing or the values of one disagree."""
        known = tuple(filter(None, facts.values.get(_named(self.name, facts), ())))
        if self.operator in _UNARY:
            return bool(known) is (self.operator == "known")
        wanted = self._wanted(facts)
        if not known or not wanted:
            return None
        if self.operator in ("has", "lacks"):
            text = "\n".join(known)
            found = any(option in text for option in wanted)
            return found if self.operator == "has" else not found
        answers = {self._compare(value, wanted) for value in known}
        return answers.pop() if len(answers) == 1 else None

    def _wanted(self, facts: Facts) -> Value | None:
        if self.value.startswith("{"):
            return facts.values.get(self.value.strip("{}"))
        separator = " or " if self.operator in ("has", "lacks") else None
        return tuple(self.value.split(separator))

    def _compare(self, known: str, wanted: Value) -> bool | None:
        if self.operator in ("==", "in"):
            return any(_same(known, option) for option in wanted)
        if self.operator in ("!=", "outside"):
            return not any(_same(known, option) for option in wanted)
        left, right = _version(known), _version(wanted[0])
        if left is None or right is None:
            return None
        return _ORDER[self.operator](left, right)

    def said(self, facts: Facts) -> str:
        """The condition with the values that stand for names in braces."""
        value = ", ".join(self._wanted(facts) or ()) if self.value.startswith("{") else self.value
        return f"{_named(self.name, facts)} {self.operator} {value or self.value}".rstrip()


def _named(name: str, facts: Facts) -> str:
    return facts.get(name.strip("{}")) if name.startswith("{") else name


def _same(left: str, right: str) -> bool:
    versions = _version(left), _version(right)
    return left == right or (None not in versions and versions[0] == versions[1])


def is_version(text: str) -> bool:
    """Whether conditions can put a text in order."""
    return _version(text) is not None


def _version(text: str) -> Version | None:
    """A version without its build (+cu130), which orders nothing; None for what is none."""
    try:
        return Version(text.partition("+")[0])
    except InvalidVersion:
        return None


def all_hold(conditions: Iterable[Condition], facts: Facts) -> bool | None:
    """True where all hold, False where one does not, else None. All of none hold."""
    answers = [condition.holds(facts) for condition in conditions]
    if False in answers:
        return False
    return None if None in answers else True
