"""What a token sees, as a number of the model."""

from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.limits import last_seen


@given(st.integers(1, 40), st.sampled_from(["past", "all", 1, 2, 4, 7, 32, 64]))
def test_the_last_position_that_a_token_sees(length, sight):
    """Written out: those before it and itself; all; or those whose block is not behind its own."""
    for row in range(length):
        seen = {
            "past": [*range(row + 1)],
            "all": [*range(length)],
        }.get(sight) or [other for other in range(length) if other // sight <= row // sight]
        assert [*range(last_seen(sight, row, length) + 1)] == seen
