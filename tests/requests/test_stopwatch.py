"""Times of a text, by a clock that is read by hand."""

from cutaway.requests.completion import Stopwatch, Timing


def timing(*made: float, held: int = 0) -> Timing:
    watch = Stopwatch(10.0)
    for moment in made:
        watch.token(moment)
    return watch.timing(0.5, 4, len(made), held)


def test_the_first_token_is_of_the_prefill_and_the_others_have_a_pace() -> None:
    assert timing(12.0, 12.5, 13.0) == Timing(0.5, 2.0, 2.0, 2.0)
    assert timing(12.0) == Timing(0.5, 2.0, 2.0, None)
    assert timing() == Timing(0.5, None, None, None)


def test_tokens_of_one_turn_have_no_pace() -> None:
    assert timing(12.0, 12.0) == Timing(0.5, 2.0, 2.0, None)


def test_tokens_that_were_held_until_the_first_came_are_not_counted_twice() -> None:
    """33 tokens are made before the first is heard; then two more, and all the rest at once."""
    late = [76.0, 78.0, *[80.0] * 33]
    assert timing(*late, held=32) == Timing(0.5, 66.0, None, 0.5)
    assert timing(*[30.0] * 20, held=32) == Timing(0.5, 20.0, None, None)
