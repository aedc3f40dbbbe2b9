from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.cache.prefix import PrefixIndex

TOKENS = st.lists(st.integers(0, 2**40), max_size=12)


def chain(token_ids: list[int], page_size: int = 2, salt: bytes = b"") -> list[bytes]:
    digests: list[bytes] = []
    PrefixIndex(page_size, salt).extend(digests, token_ids)
    return digests


@given(TOKENS, TOKENS)
def test_digests_are_equal_exactly_where_the_whole_prefix_is(one, other):
    for page, (a, b) in enumerate(zip(chain(one), chain(other), strict=False)):
        assert (a == b) == (one[: 2 * page + 2] == other[: 2 * page + 2])


@given(TOKENS, st.integers(0, 12))
def test_a_chain_grown_in_parts_equals_the_chain_of_the_whole(token_ids, cut):
    index = PrefixIndex(2)
    digests: list[bytes] = []
    index.extend(digests, token_ids[:cut])
    index.extend(digests, token_ids)
    assert digests == chain(token_ids)


def test_a_page_that_is_not_full_has_no_digest():
    assert [len(chain(list(range(n)), page_size=4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_token_borders_cannot_be_confused():
    assert chain([1, 23]) != chain([12, 3])
    assert chain([0, 1]) != chain([0, 2**32])


def test_another_salt_shares_nothing():
    assert not set(chain([1, 2, 3, 4], salt=b"model a")) & set(chain([1, 2, 3, 4], salt=b"b"))


def test_a_page_after_another_prefix_is_not_found():
    index = PrefixIndex(2)
    assert index.add(chain([1, 2, 3, 4]), [5, 6], 0, False)
    assert index.add(chain([1, 2, 3, 4]), [5, 6], 1, False)
    assert index.lookup(chain([1, 2, 3, 4, 9, 9]), drafter=False) == [5, 6]
    assert index.lookup(chain([1, 2, 9, 9]), drafter=False) == [5]
    assert index.lookup(chain([9, 9, 3, 4]), drafter=False) == []


def test_the_first_page_with_a_content_stays_the_one_that_is_found():
    index = PrefixIndex(2)
    assert index.add(chain([1, 2]), [7], 0, False)
    assert not index.add(chain([1, 2]), [3], 0, False)
    assert index.lookup(chain([1, 2]), drafter=False) == [7]
    assert 3 not in index


def test_a_child_of_a_private_page_stays_private():
    index = PrefixIndex(2)
    index.add(chain([1, 2]), [7], 0, False)
    assert not index.add(chain([1, 2, 3, 4]), [3, 4], 1, False)
    assert not PrefixIndex(2).add(chain([1, 2, 3, 4]), [3, 4], 1, False), "no parent at all"


def test_an_engine_with_a_drafter_stops_at_the_first_page_without_its_keys():
    index = PrefixIndex(2)
    digests, pages = chain([1, 2, 3, 4, 5, 6]), [0, 1, 2]
    for page, drafter in enumerate([True, False, True]):
        index.add(digests, pages, page, drafter)
    assert index.lookup(digests, drafter=True) == [0]
    assert index.lookup(digests, drafter=False) == [0, 1, 2]


def test_a_removed_page_is_not_found_and_leaves_a_hole_that_shows():
    index = PrefixIndex(2)
    digests = chain([1, 2, 3, 4])
    index.add(digests, [8, 9], 0, False)
    index.add(digests, [8, 9], 1, False)
    assert (index.parent(8), index.parent(9)) == (None, 8)
    index.remove(8)
    assert index.lookup(digests, drafter=False) == []
    assert 8 not in index
    with pytest.raises(KeyError):
        index.parent(9)
