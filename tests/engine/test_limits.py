"""What a token sees, as a number of the model."""

from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.limits import last_seen


@given(st.integers(1, 40), st.sampled_from(["causal", "bidirectional", 1, 2, 4, 7, 32, 64]))
def test_the_last_position_that_a_token_sees(length, attention):
    """Written out: those before it and itself; all; or those whose block is not behind its own."""
    for row in range(length):
        seen = {
            "causal": [*range(row + 1)],
            "bidirectional": [*range(length)],
        }.get(attention) or [
            other for other in range(length) if other // attention <= row // attention
        ]
        assert [*range(last_seen(attention, row, length) + 1)] == seen
