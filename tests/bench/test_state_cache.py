"""bench/state_cache.py: fewer states find less of prompts again, and none finds the least."""

from routing_traces import conversations
from state_cache import _SHAPE, found_again


def test_more_states_find_more_of_the_prompts():
    told = conversations(_SHAPE, 4 / 600, 600, 1, 1)
    none, some, all_of_them, without = (found_again(told, n, 1) for n in (0, 4, 1 << 30, None))
    assert none <= some <= all_of_them <= without
    assert none < without
