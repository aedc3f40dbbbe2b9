from __future__ import annotations

import pytest

from alula.cache.pages import PageAllocator


def cached(pages: PageAllocator, token_ids: list[int]) -> list[int]:
    """Pages of a sequence of `token_ids` that was computed and has ended."""
    digests: list[bytes] = []
    pages.index.extend(digests, token_ids)
    held = pages.open(len(digests), [])
    assert held is not None
    pages.publish(digests, held, range(len(digests)), drafter=False)
    pages.release(held)
    return held


def find(pages: PageAllocator, token_ids: list[int]) -> list[int]:
    digests: list[bytes] = []
    pages.index.extend(digests, token_ids)
    return pages.index.lookup(digests, drafter=False)


def test_the_lowest_free_pages_go_first_so_that_neighbours_stay_together():
    pages = PageAllocator(6, 2)
    first, second = pages.open(2, []), pages.open(2, [])
    assert (first, second) == ([0, 1], [2, 3])
    pages.release(first)
    assert pages.grow(3) == [0, 1, 4]


def test_page_counts_round_up():
    assert [PageAllocator(1, 4).pages_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_more_pages_than_exist_are_not_given_and_nothing_changes():
    pages = PageAllocator(4, 2)
    held = pages.open(3, [])
    assert pages.grow(2) is None
    assert pages.open(2, []) is None
    assert (pages.free, pages.in_use, pages.statistics.lookups) == (1, 3, 1)
    pages.check([held])


def test_a_shared_page_is_free_only_after_its_last_holder():
    pages = PageAllocator(4, 2)
    prefix = cached(pages, [1, 2])
    one, other = pages.open(2, prefix), pages.open(2, prefix)
    assert one[0] == other[0] and one[1] != other[1]
    assert pages.references(prefix[0]) == 2
    pages.release(one)
    assert (pages.references(prefix[0]), pages.evictable) == (1, 0)
    pages.check([other])
    pages.release(other)
    assert (pages.in_use, pages.evictable, pages.free) == (0, 1, 3)


def test_cached_pages_are_evicted_least_recently_used_first():
    pages = PageAllocator(3, 2)
    old, young = cached(pages, [1, 2]), cached(pages, [3, 4])
    pages.release(pages.open(1, old))
    pages.grow(2)
    assert find(pages, [1, 2]) == old, "it was used after the other"
    assert find(pages, [3, 4]) == []
    assert pages.statistics.evictions == 1
    assert young[0] not in pages.index


def test_a_child_is_evicted_before_its_parent():
    pages = PageAllocator(3, 2)
    chain = cached(pages, [1, 2, 3, 4, 5, 6])
    for left in (2, 1, 0):
        pages.check([chain[left + 1 :]])
        assert pages.grow(1) == [chain[left]]
        assert find(pages, [1, 2, 3, 4, 5, 6]) == chain[:left]


def test_pages_about_to_be_shared_do_not_count_as_room():
    pages = PageAllocator(3, 2)
    prefix = cached(pages, [1, 2, 3, 4])
    assert pages.open(4, prefix) is None
    assert pages.open(3, prefix) == [*prefix, 2]
    assert find(pages, [1, 2, 3, 4]) == prefix


def test_equal_pages_of_two_sequences_are_freed_once_each():
    pages = PageAllocator(4, 2)
    digests: list[bytes] = []
    pages.index.extend(digests, [1, 2, 3, 4])
    first, second = pages.open(2, []), pages.open(2, [])
    pages.publish(digests, first, range(2), drafter=False)
    pages.publish(digests, second, range(2), drafter=False)
    pages.release(first)
    pages.check([second])
    pages.release(second)
    assert (pages.evictable, pages.free) == (2, 2)
    assert find(pages, [1, 2, 3, 4]) == first


def test_statistics_count_hits_and_saved_tokens():
    pages = PageAllocator(4, 2)
    prefix = cached(pages, [1, 2, 3, 4])
    pages.open(3, prefix)
    statistics = pages.statistics
    assert (statistics.lookups, statistics.hits, statistics.tokens_saved) == (2, 1, 4)


def test_check_says_which_page_is_wrong():
    pages = PageAllocator(3, 2)
    held = pages.open(2, [])
    pages.check([held])
    with pytest.raises(AssertionError, match="page 1 counts 1 of 0 holders"):
        pages.check([held[:1]])
    with pytest.raises(AssertionError, match="page 0 counts 1 of 2 holders"):
        pages.check([held, held[:1]])


def test_check_sees_a_page_freed_twice_a_page_lost_and_a_hole():
    twice = PageAllocator(2, 2)
    twice._free.append(1)
    with pytest.raises(AssertionError, match="page 1 is in 2 states"):
        twice.check([])
    lost = PageAllocator(2, 2)
    lost._free.remove(0)
    with pytest.raises(AssertionError, match="page 0 is in 0 states"):
        lost.check([])
    holed = PageAllocator(2, 2)
    cached(holed, [1, 2, 3, 4])
    del holed._evictable[0]
    holed._free.append(0)
    holed.index.remove(0)
    with pytest.raises(AssertionError, match="before page 1 has a hole"):
        holed.check([])
    reversed_order = PageAllocator(2, 2)
    cached(reversed_order, [1, 2, 3, 4])
    reversed_order._evictable.move_to_end(1)
    with pytest.raises(AssertionError, match="page 0 would be evicted before its child 1"):
        reversed_order.check([])


def test_without_reuse_no_page_is_found_again_or_kept():
    pages = PageAllocator(4, 2, reuse=False)
    digests: list[bytes] = []
    pages.digest(digests, [1, 2, 3, 4])
    held = pages.open(2, [])
    assert held is not None
    pages.publish(digests, held, range(2), drafter=False)
    pages.release(held)
    assert (digests, pages.free, pages.evictable, len(pages.index)) == ([], 4, 0, 0)
    pages.check([])
