"""Who holds which page of the key-value pool, and which pages are kept in case they come back."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from alula.cache.prefix import PrefixIndex


@dataclass
class CacheStatistics:
    """What prefix reuse did since the start."""

    lookups: int = 0
    """Sequences that were given their first pages."""
    hits: int = 0
    """Those of them that shared at least one page."""
    tokens_saved: int = 0
    evictions: int = 0


class PageAllocator:
    """Hands out pages 0 … count - 1; host side only, the keys lie in the pools.

    A page is in exactly one of three states:

    - free: nobody holds it and nothing in it is of use;
    - in use: held by at least one sequence, by several where they share a prefix;
    - evictable: held by nobody, but its prefix is in the index. The least recently released
      goes first, and of one chain the child before its parent.

    The lowest free page goes first, so that a sequence's pages tend to be neighbours. Without
    `reuse` no page has a digest, so that none is ever found again or evictable.
    """

    def __init__(
        self, count: int, page_size: int, *, salt: bytes = b"", reuse: bool = True
    ) -> None:
        self.count = count
        self.page_size = page_size
        self.reuse = reuse
        self.index = PrefixIndex(page_size, salt)
        self.statistics = CacheStatistics()
        self._free = list(range(count))
        self._references = [0] * count
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Pages in state free."""
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Pages in state evictable."""
        return len(self._evictable)

    @property
    def in_use(self) -> int:
        """Pages in state in use."""
        return self.count - self.free - self.evictable

    def pages_for(self, positions: int) -> int:
        """How many pages hold `positions` positions."""
        return -(-positions // self.page_size)

    def references(self, page: int) -> int:
        """How many sequences hold `page`."""
        return self._references[page]

    def open(self, count: int, cached: Sequence[int]) -> list[int] | None:
        """A new sequence's `count` pages: share `cached`, found by the index, and take the rest.

        Returns None, and changes nothing, where too few are left.
        """
        idle = sum(page in self._evictable for page in cached)
        if count - len(cached) > self.free + self.evictable - idle:
            return None
        for page in cached:
            self._references[page] += 1
            self._evictable.pop(page, None)
        self.statistics.lookups += 1
        self.statistics.hits += bool(cached)
        self.statistics.tokens_saved += len(cached) * self.page_size
        return [*cached, *(self._take() for _ in range(count - len(cached)))]

    def grow(self, count: int) -> list[int] | None:
        """`count` more pages, evicting where needed; None, and no change, if too few are left."""
        if count > self.free + self.evictable:
            return None
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        if not self._free:
            page, _ = self._evictable.popitem(last=False)
            self.index.remove(page)
            self.statistics.evictions += 1
            heapq.heappush(self._free, page)
        page = heapq.heappop(self._free)
        self._references[page] = 1
        return page

    def digest(self, digests: list[bytes], token_ids: Sequence[int]) -> None:
        """Append to `digests` those of the full pages that `token_ids` has grown since."""
        if self.reuse:
            self.index.extend(digests, token_ids)

    def publish(
        self, digests: Sequence[bytes], pages: Sequence[int], full: range, *, drafter: bool
    ) -> None:
        """Let later sequences find the pages numbered `full` of a sequence.

        They must be committed to the last slot: nobody may write to them any more.
        """
        for number in full if self.reuse else ():
            if not self.index.add(digests, pages, number, drafter):
                break

    def release(self, pages: Sequence[int]) -> None:
        """Let go of all pages of a sequence; those in the index stay as evictable.

        The last page is let go first: a child precedes its parent in the order of eviction, and
        since a child's holders hold its parent as well, this stays so.
        """
        for page in reversed(pages):
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self.index:
                self._evictable[page] = None
            else:
                heapq.heappush(self._free, page)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Prove that in use + evictable + free = all, given every holder's pages.

        Raises AssertionError saying which page is wrong.
        """
        held = Counter(page for pages in holders for page in pages)
        free = Counter(self._free)
        for page in range(self.count):
            count = self._references[page]
            require(count == held[page], f"page {page} counts {count} of {held[page]} holders")
            states = (held[page] > 0) + free[page] + (page in self._evictable)
            require(states == 1, f"page {page} is in {states} states, not in one")
            require(not free[page] or page not in self.index, f"free page {page} can be found")
        self._check_chains()

    def _check_chains(self) -> None:
        order = {page: place for place, page in enumerate(self._evictable)}
        found = [page for page in range(self.count) if page in self.index]
        require(len(found) == len(self.index), "two prefixes share a page")
        for page in found:
            try:
                parent = self.index.parent(page)
            except KeyError:
                raise AssertionError(f"the chain before page {page} has a hole") from None
            if parent in order:
                early = page in order and order[page] < order[parent]
                require(early, f"page {parent} would be evicted before its child {page}")
        lost = order.keys() - set(found)
        require(not lost, f"evictable pages {sorted(lost)} cannot be found")


def require(condition: bool, words: str) -> None:
    """Raise AssertionError(words) unless `condition`; unlike `assert`, also under python -O."""
    if not condition:
        raise AssertionError(words)
