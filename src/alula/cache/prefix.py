"""Which page already holds which prefix: a hash chain over full pages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple


class Entry(NamedTuple):
    """What is known of a page that can be found again."""

    digest: bytes
    parent: bytes
    drafter: bool
    """Whether the drafter's keys were written too."""


class PrefixIndex:
    """Full, committed pages by the content of the sequence up to and including them.

    A page's digest covers its parent's digest and its own token ids, so that equal digests mean
    equal prefixes. BLAKE2b with 256 bits: a collision would serve foreign keys and silently
    change the output, hence no shorter or non-cryptographic hash. `salt` separates models and
    layouts.

    Invariant: whoever holds a page of the index holds the pages of the index before it.
    `add` refuses what would break it.
    """

    def __init__(self, page_size: int, salt: bytes = b"") -> None:
        self.page_size = page_size
        self.root = blake2b(salt, digest_size=32).digest()
        self._pages: dict[bytes, int] = {}
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: object) -> bool:
        return page in self._entries

    def extend(self, digests: list[bytes], token_ids: Sequence[int]) -> None:
        """Append to `digests`, one per full page, those that `token_ids` has grown since."""
        size = self.page_size
        for page in range(len(digests), len(token_ids) // size):
            content = array("q", token_ids[page * size : (page + 1) * size]).tobytes()
            parent = digests[-1] if digests else self.root
            digests.append(blake2b(parent + content, digest_size=32).digest())

    def lookup(self, digests: Sequence[bytes], *, drafter: bool) -> list[int]:
        """The pages of the longest known prefix, first to last.

        With `drafter` it ends before the first page that lacks the drafter's keys.
        """
        pages: list[int] = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None or (drafter and not self._entries[page].drafter):
                break
            pages.append(page)
        return pages

    def add(self, digests: Sequence[bytes], pages: Sequence[int], last: int, drafter: bool) -> bool:
        """Make page number `last` of a sequence findable; returns whether it now is.

        It stays private where another page has the same content already (the first one is
        canonical), or where the page before it is private: its holder would not hold the
        canonical parent, which could then be evicted before the child.
        """
        digest, page = digests[last], pages[last]
        parent = digests[last - 1] if last else self.root
        if digest in self._pages or (last and self._pages.get(parent) != pages[last - 1]):
            return False
        self._pages[digest] = page
        self._entries[page] = Entry(digest, parent, drafter)
        return True

    def remove(self, page: int) -> None:
        """Forget a page."""
        del self._pages[self._entries.pop(page).digest]

    def parent(self, page: int) -> int | None:
        """The page before `page` in its chain; None for a first page.

        Raises KeyError where the chain has a hole.
        """
        parent = self._entries[page].parent
        return None if parent == self.root else self._pages[parent]
