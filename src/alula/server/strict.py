"""What the schemas are made of: strict models and fields that tell their first fault only.

A body may hold a million faults; to tell all of them would take gigabytes, and hold everybody up.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

MOST_PROMPTS = 4096
MOST_INTEGER = 2**31 - 1
"""Of what has no smaller bound; more fits into no vocabulary and no context."""

TEXT, PARTS, TOKENS, TOKEN_LISTS = "(text)", "(parts)", "(token ids)", "(lists of token ids)"
"""Forms of one field, told apart before they are read; errors do not name them."""
FORMS = frozenset((TEXT, PARTS, TOKENS, TOKEN_LISTS))

_NUMBER = r"^(0|[1-9][0-9]{0,8})$"

T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
Whole = Annotated[int, Field(ge=1, le=MOST_INTEGER)]
TokenIds = Several[Annotated[int, Field(ge=0, le=MOST_INTEGER)]]


class Strict(BaseModel):
    """No conversions and no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _one_stranger_is_enough(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        stranger = next((name for name in given if name not in known), None)
        return {name: given[name] for name in given if name in known or name == stranger}


def is_text(value: Any) -> str:
    """The form of what is text, or else something with parts."""
    return TEXT if isinstance(value, str) else PARTS


def _kind_of_prompt(value: Any) -> str:
    if isinstance(value, str):
        return TEXT
    first = value[0] if isinstance(value, list) and value else None
    return PARTS if isinstance(first, str) else TOKEN_LISTS if isinstance(first, list) else TOKENS


def _first_wrong_bias(given: Any) -> Any:
    """Only the first wrong one, where there are any."""
    for token, bias in given.items() if isinstance(given, dict) else ():
        right = isinstance(bias, int | float) and not isinstance(bias, bool) and abs(bias) <= 100
        if not right or re.match(_NUMBER, str(token)) is None:
            return {token: bias}
    return given


Prompt = Annotated[
    Annotated[str, Tag(TEXT)]
    | Annotated[Several[str], Field(max_length=MOST_PROMPTS), Tag(PARTS)]
    | Annotated[TokenIds, Field(min_length=1), Tag(TOKENS)]
    | Annotated[Several[TokenIds], Field(max_length=MOST_PROMPTS), Tag(TOKEN_LISTS)],
    Discriminator(_kind_of_prompt),
]
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=_NUMBER)], Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_first_wrong_bias),
]
"""By token id, written as JSON writes keys."""
