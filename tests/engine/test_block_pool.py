"""BlockPool against a set of free ids."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cutaway.cache import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Takes and returns blocks; the model is the set of free ids."""

    @initialize(count=st.integers(0, 12))
    def make(self, count):
        self.pool, self.all, self.free = BlockPool(count), set(range(count)), set(range(count))

    @rule(data=st.data())
    def take(self, data):
        ids = self.pool.take(data.draw(st.integers(0, len(self.free))))
        assert len(set(ids)) == len(ids)
        assert self.free.issuperset(ids)
        self.free -= set(ids)

    @rule(more=st.integers(1, 5))
    def take_too_many(self, more):
        with pytest.raises(RuntimeError, match=f"{len(self.free) + more} KV blocks wanted"):
            self.pool.take(len(self.free) + more)

    @rule(data=st.data())
    def give_back(self, data):
        taken = sorted(self.all - self.free)
        ids = data.draw(st.lists(st.sampled_from(taken), unique=True)) if taken else []
        self.pool.give_back(ids)
        self.free |= set(ids)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def give_back_what_was_not_taken(self, data):
        foreign = data.draw(st.sampled_from([*sorted(self.free), -1, len(self.all)]))
        with pytest.raises(RuntimeError, match=rf"\[{foreign}\] were not taken"):
            self.pool.give_back([*sorted(self.all - self.free), foreign])

    @invariant()
    def the_count_of_free_blocks_is_right(self):
        assert self.pool.free == len(self.free)

    def teardown(self):
        self.pool.give_back(sorted(self.all - self.free))
        assert sorted(self.pool.take(self.pool.count)) == sorted(self.all)


TestPool = PoolMachine.TestCase


def test_a_fresh_pool_hands_out_the_lowest_ids_first():
    pool = BlockPool(5)
    assert (pool.take(2), pool.take(3)) == ([0, 1], [2, 3, 4])


def test_blocks_returned_together_are_taken_again_in_the_same_order():
    pool = BlockPool(5)
    ids = pool.take(3)
    pool.give_back(ids)
    assert pool.take(3) == ids


def test_an_id_given_back_twice_in_one_call_is_refused():
    pool = BlockPool(3)
    pool.take(2)
    with pytest.raises(RuntimeError, match="not taken"):
        pool.give_back([1, 1])
