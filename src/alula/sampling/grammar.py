"""Grammars that outputs must match: llguidance's matchers, and the tokens they allow at each node.

A mask acts on the target alone, at every node of a draft tree along the node's own path, so that
speculation changes no token of a constrained output either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from alula.errors import MachineError, UsageError
from alula.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 64
"""Compiled grammars that are kept for the next request."""


class Matcher:
    """Where one output stands in its grammar."""

    def __init__(self, matcher: LLMatcher, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids

    @property
    def failed(self) -> bool:
        """Whether the grammar cannot be followed any further: it became too complex."""
        return bool(self._matcher.is_error())

    def advance(self, tokens: Sequence[int]) -> None:
        """Follow emitted tokens, which its masks have allowed."""
        self._matcher.consume_tokens([token for token in tokens if token not in self._eos_ids])

    def fill(self, masks: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Write into row i of `masks` [N + 1, W] int32 which tokens may follow node i of a tree.

        `tokens` and `parents` [N] are a draft tree's. Returns the nodes that were reached; one
        that the grammar forbids, or that ends the output, and those below it are not, and what is
        chosen there never counts. Bit b of word w stands for token 32 w + b. The matcher is left
        where it was.
        """
        children: dict[int, list[int]] = {}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
            if token >= 0 and token not in self._eos_ids:
                children.setdefault(parent, []).append(node)
        reached: list[int] = []
        self._descend(0, masks, tokens, children, reached)
        return reached

    def _descend(
        self,
        node: int,
        masks: Tensor,
        tokens: Sequence[int],
        children: dict[int, list[int]],
        reached: list[int],
    ) -> None:
        row = masks[node]
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        reached.append(node)
        for child in children.get(node, ()):
            if self._matcher.try_consume_tokens([tokens[child - 1]]):
                self._descend(child, masks, tokens, children, reached)
                self._matcher.rollback(1)


class Grammars:
    """Compiles grammars for one tokenizer. Safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        """`vocabulary`: tokens that can be sampled; ids from there on have no bit."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def words(self) -> int:
        """W, the 32-bit words of a mask."""
        return -(-self._vocabulary // 32)

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

    def compile(self, grammar: str) -> None:
        """Make a grammar ready, which may take a second. Raises UsageError for one that is broken.

        `grammar` is llguidance's JSON, as its `grammar_from_…` functions give it, or Lark.
        """
        if grammar in self._compiled:
            self._compiled.move_to_end(grammar)
            return
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary_tree, grammar, log_level=0)
        if matcher.is_error():
            raise UsageError(
                "the grammar cannot be used",
                str(matcher.get_error()).strip() or "llguidance refuses it",
                "simplify it, or leave it out",
            )
        self._compiled[grammar] = matcher
        while len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)

    def matcher(self, grammar: str, output_ids: Sequence[int] = ()) -> Matcher:
        """A matcher that has followed `output_ids`."""
        self.compile(grammar)
        made = Matcher(self._compiled[grammar].deep_copy(), self._tokenizer.eos_ids)
        made.advance(output_ids)
        return made


def apply_masks(logits: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
    """A copy of logits [R, V] in which `masks` [K, W] int32 forbid tokens of `rows` [K]."""
    bits = torch.arange(32, device=masks.device, dtype=torch.int32)
    allowed = ((masks[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]].bool()
    return logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, float("-inf")))


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
