"""What a tokenizer is made of, wherever it was read, and the byte alphabet of its pieces."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import tokenizers


class Definition(NamedTuple):
    """A vocabulary with its rules, and the ids that begin and end a text."""

    backend: tokenizers.Tokenizer
    eos_ids: frozenset[int]
    bos_id: int | None
    add_bos: bool


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's symbols → bytes: what prints in Latin-1 is itself, the others follow at U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF_SYMBOL = MappingProxyType(_byte_alphabet())


def piece_bytes(piece: str) -> bytes:
    """The bytes that a piece of a byte-level vocabulary stands for.

    A piece with a symbol outside the alphabet is taken literally, as the `tokenizers` library does.
    """
    try:
        return bytes(BYTE_OF_SYMBOL[symbol] for symbol in piece)
    except KeyError:
        return piece.encode()
