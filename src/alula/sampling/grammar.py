"""Grammars that outputs must match: llguidance's matchers, and the tokens they allow at each node.

A mask acts on the target alone, at every node of a draft tree along the node's own path, so that
speculation changes no token of a constrained output either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from alula.sampling.compiler import GrammarCompiler
from alula.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

_KEPT = 64
"""Compiled grammars that are kept for the next request."""


class Filled(NamedTuple):
    """What a matcher says about the nodes of a tree."""

    reached: list[int]
    """Nodes whose row of the masks is written. What is chosen at others never counts: the grammar
    forbids them, they end the output, or they are below such a node."""
    pruned: list[int]
    """Nodes that the grammar allows and where it became too complex to say what may follow. They
    have to leave the tree, since what is chosen there would count."""


class Matcher:
    """Where one output stands in its grammar."""

    def __init__(self, start: LLMatcher, eos_ids: frozenset[int]) -> None:
        """`start`: a matcher at the start of the grammar, which is left there."""
        self._start = start
        self._matcher = start.deep_copy()
        self._eos_ids = eos_ids
        self._followed: list[int] = []

    @property
    def failed(self) -> bool:
        """Whether the grammar cannot be followed any further: it became too complex."""
        return bool(self._matcher.is_error())

    def advance(self, tokens: Sequence[int]) -> None:
        """Follow emitted tokens, which its masks have allowed."""
        new = [token for token in tokens if token not in self._eos_ids]
        self._followed += new
        self._matcher.consume_tokens(new)

    def fill(self, masks: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Filled:
        """Write into row i of `masks` [N + 1, W] int32 which tokens may follow node i of a tree.

        `tokens` and `parents` [N] are a draft tree's. Bit b of word w stands for token 32 w + b.
        The matcher is left where it was. Where it fails at the root, no node is reached.
        """
        children: dict[int, list[tuple[int, int]]] = {}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
            if token >= 0 and token not in self._eos_ids:
                children.setdefault(parent, []).append((node, token))
        filled = Filled([], [])
        self._descend(0, [], masks, children, filled)
        if not filled.reached:
            # Nodes of earlier trees take room too, which another matcher has not filled yet.
            self._return_to([])
            self._descend(0, [], masks, children, filled)
        return filled

    def _descend(
        self,
        node: int,
        path: list[int],
        masks: Tensor,
        children: dict[int, list[tuple[int, int]]],
        filled: Filled,
    ) -> None:
        """Node by node; `path` are the tokens from the root to `node`."""
        row = masks[node]
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        if self._matcher.is_error():
            return
        filled.reached.append(node)
        for child, token in children.get(node, ()):
            consumed = self._matcher.try_consume_tokens([token])
            if consumed:
                self._descend(child, [*path, token], masks, children, filled)
            if self._matcher.is_error():
                filled.pruned.append(child)
                self._return_to(path)
            elif consumed:
                self._matcher.rollback(1)

    def _return_to(self, path: list[int]) -> None:
        """A matcher that has failed cannot go back: another one goes the way anew."""
        self._matcher = self._start.deep_copy()
        self._matcher.consume_tokens(self._followed + path)


class Grammars:
    """Compiles grammars for one tokenizer. Safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        """`vocabulary`: tokens that can be sampled; ids from there on have no bit."""
        self._eos_ids = tokenizer.eos_ids
        self._vocabulary = vocabulary
        self._compiler = GrammarCompiler(tokenizer, vocabulary)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def words(self) -> int:
        """W, the 32-bit words of a mask."""
        return -(-self._vocabulary // 32)

    def compile(self, grammar: str) -> LLMatcher:
        """Make a grammar ready, which may take a second. Raises what the compiler raises."""
        matcher = self._compiled.pop(grammar, None) or self._compiler.compile(grammar)
        self._compiled[grammar] = matcher
        while len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        return matcher

    def matcher(self, grammar: str, output_ids: Sequence[int] = ()) -> Matcher:
        """A matcher that has followed `output_ids`."""
        made = Matcher(self.compile(grammar), self._eos_ids)
        made.advance(output_ids)
        return made


def apply_masks(logits: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
    """A copy of logits [R, V] in which `masks` [K, W] int32 forbid tokens of `rows` [K]."""
    bits = torch.arange(32, device=masks.device, dtype=torch.int32)
    allowed = ((masks[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]].bool()
    return logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, float("-inf")))
