"""How far a sequence may grow, and how many positions must have pages while it does."""

from __future__ import annotations

from typing import NamedTuple

from alula.cache.pages import PageAllocator
from alula.engine.request import Sequence
from alula.errors import LengthError, ResourceError


class Limits(NamedTuple):
    """Bounds that hold for every sequence of an engine."""

    max_length: int
    """Tokens of prompt and output together."""
    round_rows: int
    """1 + draft nodes."""

    def length(self, sequence: Sequence) -> int:
        """Tokens at which a sequence ends for their number."""
        return min(len(sequence.prompt_ids) + sequence.params.max_tokens, self.max_length)

    def reach(self, sequence: Sequence, root: int) -> int:
        """Positions that must have pages when position `root` is, or is about to be, the root.

        Two rounds of full growth: this one moves the root by up to `round_rows`, and the draft
        that it ends with is written behind the new root. A sequence that has all its tokens is
        finished, so no root comes after `length` - 2.
        """
        root = min(root, self.length(sequence) - 2)
        return min(root + 2 * self.round_rows + 1, self.max_length + self.round_rows)

    def admit(self, sequence: Sequence, pages: PageAllocator) -> None:
        """Refuse a sequence that could not be finished even alone.

        Raises LengthError for a prompt that is empty or leaves no room for an answer, and
        ResourceError where it may come to need more pages than exist.
        """
        length = len(sequence.prompt_ids)
        if not 0 < length < self.max_length:
            raise LengthError(
                f"a prompt of {length} tokens cannot be answered",
                f"the context holds {self.max_length} tokens, of which the prompt needs at least "
                "1 and the answer at least 1",
                "give a prompt that is not empty" if not length else "shorten the prompt",
            )
        needed = pages.pages_for(self.reach(sequence, self.max_length))
        if needed > pages.count:
            raise ResourceError(
                f"a request of {length} prompt tokens and up to {sequence.params.max_tokens} new "
                "ones does not fit the cache",
                f"with the room that drafts need it may take {needed} pages of {pages.page_size} "
                f"tokens, and there are {pages.count}",
                f"set cache_tokens to at least {needed * pages.page_size}, or lower max_tokens",
            )
