"""What a token sees, as a number of the model."""

from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.limits import last_seen


@given(st.integers(1, 40), st.sampled_from(["causal", "bidirectional", 1, 2, 4, 7, 32, 64]))
def test_the_last_position_that_a_token_sees(length, attention):
    """Written out: those whose block does not come after its own."""
    size = {"causal": 1, "bidirectional": length}.get(attention, attention)
    for row in range(length):
        seen = [p for p in range(length) if p // size <= row // size]
        assert [*range(last_seen(attention, row, length) + 1)] == seen
