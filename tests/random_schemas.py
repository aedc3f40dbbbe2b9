"""Random JSON schemas, and tokens that tend to end what they begin."""

from __future__ import annotations

import random
from typing import Any

WORDS = ("wing", "feather", "beak", "tail", "nest", "egg")


def random_schema(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    """An object of one to three members, some of them optional."""
    names = dice.sample(WORDS, dice.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _value(dice, depth) for name in names},
        "required": [name for name in names if dice.random() < 0.6],
        "additionalProperties": False,
    }


def _value(dice: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_enum, _integer, _number, _text, _boolean]
    if depth:
        kinds += [_object, _array, _array]
    return dice.choice(kinds)(dice, depth)


def _object(dice: random.Random, depth: int) -> dict[str, Any]:
    return random_schema(dice, depth - 1)


def _array(dice: random.Random, depth: int) -> dict[str, Any]:
    least = dice.randint(0, 2)
    return {
        "type": "array",
        "items": _value(dice, depth - 1),
        "minItems": least,
        "maxItems": least + dice.randint(0, 2),
    }


def _enum(dice: random.Random, _depth: int) -> dict[str, Any]:
    return {"enum": dice.sample([*WORDS, 1, 2.5, None, True], 3)}


def _integer(dice: random.Random, _depth: int) -> dict[str, Any]:
    least = dice.randint(-50, 50)
    return {"type": "integer", "minimum": least, "maximum": least + dice.randint(0, 200)}


def _number(dice: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "number", "minimum": dice.randint(-5, 5)}


def _text(dice: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": dice.randint(1, 8)}


def _boolean(_dice: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "boolean"}
