"""Text to token ids and back, losing nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from alula.errors import ModelError, UsageError
from alula.text.definition import BYTE_OF_SYMBOL, Definition, piece_bytes
from alula.text.gguf_tokenizer import gguf_definition
from alula.text.huggingface_tokenizer import folder_definition


class Tokenizer:
    """A byte-level vocabulary: a token stands for bytes of a text's UTF-8.

    `eos_ids` end a text; with `add_bos`, `encode` begins one with `bos_id`. `vocab_size` counts the
    tokens; a model's head may be padded beyond it. Safe to share between threads.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._backend = definition.backend
        self.eos_ids = definition.eos_ids
        self.bos_id = definition.bos_id
        self.add_bos = definition.add_bos
        self.vocab_size: int = self._backend.get_vocab_size()
        added = self._backend.get_added_tokens_decoder()
        # The added ones are literal; others are put beside them when they are first asked for.
        self._bytes = {index: token.content.encode() for index, token in added.items()}
        self._special = frozenset(index for index, token in added.items() if token.special)
        self._missing = _missing_bytes(self._backend)
        self._refuse_foreign_ends()

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json and its settings; ModelError where it cannot be used."""
        return cls(folder_definition(Path(folder)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Read a GGUF header (key → Python value); ModelError where it cannot be used."""
        return cls(gguf_definition(metadata))

    def encode(self, text: str, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of a text.

        `special`: special tokens written in the text ("<|im_end|>") become those tokens; False
        takes them as plain characters. `add_bos`: None follows the model. A text that already
        begins with the beginning-of-text token gets no second one. Raises UsageError naming a
        character that is no Unicode text or that the vocabulary cannot express.
        """
        self._refuse_unencodable(text)
        backend = self._backend if special else self._literal
        # A batch, since only that lets other threads run meanwhile.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        wanted = self.add_bos if add_bos is None else add_bos
        if wanted and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD.

        Raises UsageError for an id outside the vocabulary.
        """
        pieces = (self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(pieces).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, maybe a part of a character; UsageError if unknown."""
        if (known := self._bytes.get(token_id)) is not None:
            return known
        piece = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if piece is None:
            raise UsageError(
                f"There is no token {token_id}",
                f"the model's vocabulary has {self.vocab_size} tokens",
                "Use ids that this model's tokenizer made.",
            )
        found = self._bytes[token_id] = piece_bytes(piece)
        return found

    def token_text(self, token_id: int) -> str:
        """Text of one token, special ones included; a part of a character shows as U+FFFD."""
        return self.decode([token_id], skip_special=False)

    def is_special(self, token_id: int) -> bool:
        """Whether the token marks structure ("<|im_end|>") and stands for no text."""
        return token_id in self._special

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """A twin that reads special tokens as plain characters; made when first needed."""
        twin = tokenizers.Tokenizer.from_str(self._backend.to_str())
        twin.encode_special_tokens = True
        return twin

    def _refuse_unencodable(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                "The text is not valid Unicode",
                f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}",
                "Decode the input as UTF-8, or remove the character.",
            ) from None
        if self._missing:
            self._refuse_missing_bytes(text)

    def _refuse_missing_bytes(self, text: str) -> None:
        if self._backend.normalizer is not None:
            text = self._backend.normalizer.normalize_str(text)
        if self._missing.isdisjoint(text.encode()):
            return
        character = next(c for c in text if not self._missing.isdisjoint(c.encode()))
        raise UsageError(
            f"The model cannot read the character {character!r} (U+{ord(character):04X})",
            f"its vocabulary lacks a token for one of the bytes {character.encode().hex(' ')}",
            "Remove the character.",
        )

    def _refuse_foreign_ends(self) -> None:
        ends = self.eos_ids | ({self.bos_id} if self.bos_id is not None else set())
        unknown = [i for i in sorted(ends) if i < 0 or self._backend.id_to_token(i) is None]
        if unknown:
            raise ModelError(
                f"The model's begin and end tokens {unknown} are not in its vocabulary",
                f"the vocabulary has {self.vocab_size} tokens",
                "Download the model again; its tokenizer belongs to another model.",
            )


def _missing_bytes(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Bytes without a token, which BPE would drop from a text without a word."""
    known = backend.token_to_id
    return frozenset(byte for symbol, byte in BYTE_OF_SYMBOL.items() if known(symbol) is None)
