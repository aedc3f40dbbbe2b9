"""llguidance over one model's tokens: it reads grammars and says what is wrong with them; no torch.

A grammar may be written so that reading it never ends or overflows the stack; whoever takes
grammars from strangers tries them in another process first (`server.grammar_trial`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from alula.errors import MachineError, UsageError
from alula.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class GrammarCompiler:
    """Makes matchers of grammars. Safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        """`vocabulary`: tokens that can be sampled."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    @cached_property
    def _vocabulary_tree(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ModuleNotFoundError as error:
            raise MachineError(
                "grammars need the package llguidance",
                "it is not installed",
                "pip install 'alula[serve]'",
            ) from error
        if not self._tokenizer.eos_ids:
            raise UsageError(
                "this model's output cannot be held to a grammar",
                "its tokenizer has no end-of-sequence token to end it with",
                "leave the grammar out",
            )
        eos_ids = sorted(self._tokenizer.eos_ids)
        wrapper = TokenizerWrapper(_Described(self._tokenizer, eos_ids[0]))
        return LLTokenizer(wrapper, n_vocab=self._vocabulary, eos_token=eos_ids)

    def prepare(self) -> None:
        """Get ready for the first grammar, which takes a second for a large vocabulary.

        Raises MachineError without llguidance, UsageError where the model cannot follow grammars.
        """
        _ = self._vocabulary_tree

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at the start of a grammar. Raises UsageError for one that is broken, that
        matches nothing, or that is too complex from the start.

        `grammar` is llguidance's JSON, as its `grammar_from_…` functions give it, or Lark.
        """
        self.prepare()
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._vocabulary_tree, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _broken(matcher, "llguidance refuses it")
        begun = matcher.deep_copy()
        mask = begun.compute_bitmask()
        if begun.is_error() or not any(mask):
            raise _broken(begun, "nothing matches it")
        return matcher


def _broken(matcher: LLMatcher, otherwise: str) -> UsageError:
    said = str(matcher.get_error() or "").partition("\n<")[0].strip()
    # The library's own name for a grammar whose start allows no byte at all.
    why = otherwise if said in ("", "NoExtensionBias") else said
    return UsageError("the grammar cannot be used", why, "simplify it, or leave it out")


class _Described:
    """A tokenizer as llguidance wants to see one."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        count = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [_bytes_of(tokenizer, number) for number in range(count)]
        self.special_token_ids = [n for n in range(count) if tokenizer.is_special(n)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False, add_bos=False)


def _bytes_of(tokenizer: Tokenizer, number: int) -> bytes:
    """Some vocabularies leave numbers out."""
    try:
        return tokenizer.token_bytes(number)
    except UsageError:
        return b""
