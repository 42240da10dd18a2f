"""BlockManager, one subtle point at a time. Texts are letters; a block holds two."""

import sys

import pytest

from cutaway.engine.memory.block_manager import BlockManager
from support.block_integrity import check_blocks


def spell(text):
    return [ord(c) for c in text]


def write(manager, text):
    """Take blocks for a text that is computed in full, and publish it."""
    return manager.publish(manager.allocate(-(-len(text) // manager.block)), spell(text))


def find(manager, text):
    """What match finds, with the holds given back."""
    ids = manager.match(spell(text))
    manager.release(ids)
    return ids


# -- taking and giving back ---------------------------------------------------------------------


def test_the_lowest_ids_are_taken_first_and_returned_ones_again_in_the_same_order():
    manager = BlockManager(5, 2)
    assert (manager.allocate(2), manager.allocate(3)) == ([0, 1], [2, 3, 4])
    manager.release([2, 3, 4])
    assert manager.allocate(3) == [2, 3, 4]


def test_nothing_is_taken_when_too_much_is_wanted():
    manager = BlockManager(3, 2)
    manager.release(write(manager, "abcd"))
    with pytest.raises(RuntimeError, match="4 KV blocks wanted, 3 free"):
        manager.allocate(4)
    assert find(manager, "abcd") == [0, 1]


@pytest.mark.parametrize("ids", [[0, 0], [0, 2], [0, -1], [0, 3], [0, 1, 0]])
@pytest.mark.parametrize("method", ["release", "retain"])
def test_an_id_that_is_not_held_as_often_is_refused_and_nothing_changes(method, ids):
    manager = BlockManager(3, 2)
    held = manager.allocate(2)
    with pytest.raises(RuntimeError, match="are not held"):
        getattr(manager, method)(ids)
    check_blocks(manager, [held])


def test_a_fork_holds_its_blocks_until_both_have_given_them_back():
    manager = BlockManager(2, 2)
    ids = manager.allocate(2)
    fork = manager.retain(ids)
    assert fork == ids
    assert fork is not ids
    manager.release(ids)
    assert manager.free == 0
    manager.release(fork)
    assert manager.free == 2
    ids = manager.allocate(2)
    manager.release([*manager.retain(ids), *ids])  # both in one call
    check_blocks(manager, [])


# -- matching -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abcdef", [0, 1, 2]),
        ("abcdefgh", [0, 1, 2]),
        ("abcde", [0, 1]),
        ("abcd", [0, 1]),
        ("abxxef", [0]),
        ("cdef", []),
        ("a", []),
        ("", []),
    ],
)
def test_match_finds_the_longest_chain_of_whole_blocks(text, found):
    manager = BlockManager(4, 2)
    held = write(manager, "abcdef")
    assert find(manager, text) == found
    check_blocks(manager, [held])


def test_a_matched_block_is_not_evicted():
    manager = BlockManager(2, 2)
    manager.release(write(manager, "abcd"))
    assert manager.match(spell("ab")) == [0]
    assert manager.free == 1
    assert manager.allocate(1) == [1]


def test_equal_blocks_after_different_beginnings_are_different_texts():
    manager = BlockManager(8, 2)
    held = [write(manager, "abxy"), write(manager, "cdxy"), write(manager, "xyxy")]
    assert held == [[0, 1], [2, 3], [4, 5]]
    assert [find(manager, text) for text in ("abxy", "cdxy", "xyxy")] == held


def test_texts_whose_hashes_collide_are_told_apart():
    twin = sys.hash_info.modulus  # hash(twin) == hash(0)
    manager = BlockManager(2, 2)
    assert hash((twin, 1)) == hash((0, 1))
    manager.publish(manager.allocate(1), [0, 1])
    assert manager.match([twin, 1]) == []
    assert manager.publish(manager.allocate(1), [twin, 1]) == [1]


# -- publishing ---------------------------------------------------------------------------------


def test_a_block_that_is_not_whole_is_not_published():
    manager = BlockManager(4, 2)
    ids = write(manager, "abc")
    assert find(manager, "abcd") == ids[:1]
    assert manager.publish(ids, spell("abcd"), 1) == ids
    assert find(manager, "abcd") == ids


def test_two_who_wrote_the_same_text_share_the_first_ones_blocks():
    manager = BlockManager(6, 2)
    first, second = manager.allocate(2), manager.allocate(3)
    assert manager.publish(first, spell("abcd")) == [0, 1]
    assert manager.publish(second, spell("abcde")) == [0, 1, 4]
    assert manager.free == 3
    check_blocks(manager, [[0, 1], [0, 1, 4]])
    manager.release(first)
    check_blocks(manager, [[0, 1, 4]])


def test_the_child_of_a_replaced_block_is_published_under_the_block_in_use():
    manager = BlockManager(4, 2)
    manager.release(write(manager, "ab"))
    own = manager.allocate(2)
    assert manager.publish(own, spell("abcd")) == [0, 2]
    check_blocks(manager, [[0, 2]])
    assert find(manager, "abcd") == [0, 2]


def test_publishing_twice_changes_nothing():
    manager = BlockManager(4, 2)
    ids = write(manager, "abcd")
    assert [manager.publish(ids, spell("abcd"), first) for first in (0, 1, 2)] == [ids] * 3
    check_blocks(manager, [ids])


@pytest.mark.parametrize(
    ("ids", "text", "first", "sentence"),
    [
        ([0], "abcd", 0, "1 KV blocks cannot hold 4 tokens"),
        ([0, 3], "abcd", 0, r"\[3\] are not held"),
        ([0, 1], "abcd", 1, "0, before the first, is not published"),
        ([2], "ab", 0, "2 is published with another text"),
    ],
)
def test_what_cannot_be_published_is_refused(ids, text, first, sentence):
    manager = BlockManager(4, 2)
    held = manager.allocate(2)
    published = write(manager, "xy")
    with pytest.raises(RuntimeError, match=sentence):
        manager.publish(ids, spell(text), first)
    check_blocks(manager, [held, published])


# -- evicting -----------------------------------------------------------------------------------


def test_all_that_is_free_may_be_cached():
    manager = BlockManager(4, 2)
    manager.release(write(manager, "abcdefgh"))
    assert manager.free == 4
    assert sorted(manager.allocate(4)) == [0, 1, 2, 3]
    assert manager.evictions == 4
    assert manager.match(spell("abcdefgh")) == []


def test_free_blocks_are_taken_before_cached_ones():
    manager = BlockManager(3, 2)
    manager.release(write(manager, "abcd"))
    assert manager.allocate(2) == [2, 1]
    assert find(manager, "abcd") == [0]


def test_the_end_of_a_text_is_evicted_before_its_beginning():
    manager = BlockManager(3, 2)
    manager.release(write(manager, "abcdef"))
    assert [manager.allocate(1) for _ in range(3)] == [[2], [1], [0]]


def test_the_text_that_was_used_last_is_evicted_last():
    manager = BlockManager(3, 2)
    for text in ("aa", "bb", "cc"):
        manager.release(write(manager, text))
    find(manager, "aa")
    assert manager.allocate(3) == [1, 2, 0]


def test_a_branch_is_evicted_before_the_trunk_that_another_used_later():
    manager = BlockManager(3, 2)
    trunk = write(manager, "ab")
    left = manager.publish([*manager.retain(trunk), *manager.allocate(1)], spell("abll"), 1)
    right = manager.publish([*manager.retain(trunk), *manager.allocate(1)], spell("abrr"), 1)
    for ids in (trunk, left, right):
        manager.release(ids)
    assert manager.allocate(3) == [1, 2, 0]


@pytest.mark.parametrize(("text", "whole"), [("ab", "abcd"), ("xy", "xycd")])
@pytest.mark.parametrize("place", [0, 1])
def test_a_child_whose_parent_was_evicted_is_found_by_nobody_and_is_not_lost(text, whole, place):
    manager = BlockManager(3, 2)
    parent, child = write(manager, "abcd")
    manager.release([parent])  # out of order: a caller should give back the child first
    manager.release([child])
    taken = manager.allocate(2)
    assert taken == [2, parent]
    assert manager.match(spell("abcd")) == []
    manager.publish([taken[place]], spell(text))
    assert find(manager, whole) == [taken[place]]
    assert manager.allocate(1) == [child]
    check_blocks(manager, [taken[:1], taken[1:], [child]])


# -- check --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lists", [[], [[0, 1]], [[0, 1, 2], [0]], [[0, 1, 3]], [[1, 0, 2]], [[2, 0, 1]]]
)
def test_check_finds_a_caller_whose_lists_are_wrong(lists):
    manager = BlockManager(4, 2)
    check_blocks(manager, [write(manager, "abcde")])
    with pytest.raises(RuntimeError, match=r"more or less often|do not follow"):
        check_blocks(manager, lists)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda m: m._free.pop(), "lost"),
        (lambda m: m._free.append(2), "two places"),
        (lambda m: m._free.append(m._cached.popitem()[0]), "what is cached"),
        (lambda m: m._index.popitem(), "the index"),
        (lambda m: m._index.update({(9, (1, 2)): 0}), "the index"),
        (lambda m: m._nodes.update({0: m._nodes[1]}), "the index"),
    ],
)
def test_check_finds_books_that_disagree(damage, sentence):
    manager = BlockManager(5, 2)
    manager.release(write(manager, "abcd"))
    held = manager.match(spell("ab"))
    check_blocks(manager, [held])
    damage(manager)
    with pytest.raises(RuntimeError, match=sentence):
        check_blocks(manager, [held])
