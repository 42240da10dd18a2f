"""SuffixAutomaton against the definition: try every end of the text, longest first."""

from hypothesis import example, given
from hypothesis import strategies as st

from cutaway.engine.speculation import MIN_MATCH, REFRESHED, SuffixAutomaton

LETTERS = st.integers(0, 1) | st.integers(0, 3)
TEXTS = st.lists(LETTERS, max_size=60) | st.builds(
    lambda head, period, times: head + period * times,
    st.lists(LETTERS, max_size=6),
    st.lists(LETTERS, min_size=1, max_size=4),
    st.integers(1, 15),
)
MATCHED = st.tuples(  # ends in what came before, and is so short that no refresh is bounded out
    st.lists(LETTERS, max_size=REFRESHED // 3),
    st.lists(LETTERS, min_size=MIN_MATCH, max_size=max(MIN_MATCH, REFRESHED // 6)),
    st.lists(LETTERS, max_size=REFRESHED // 3),
).map(lambda parts: [*parts[0], *parts[1], *parts[2], *parts[1]])


def places(text: list[int], length: int) -> list[int]:
    """One past each earlier occurrence of the text's last ``length`` tokens."""
    end = text[len(text) - length :]
    return [i for i in range(length, len(text)) if text[i - length : i] == end]


def longest_match(text: list[int]) -> int:
    return next((n for n in range(len(text) - 1, 0, -1) if places(text, n)), 0)


def continuation(text: list[int], place: int, limit: int) -> list[int]:
    """What follows there, each draft being text for the next: round and round at the end."""
    grown = list(text)
    for i in range(limit):
        grown.append(grown[place + i])
    return grown[len(text) :]


@given(TEXTS, st.integers(0, 20))
@example([], 4)
@example([7], 4)
@example([1, 1, 1, 1], 6)
@example([1, 2, 3, 1, 2], 9)
def test_the_draft_follows_an_occurrence_of_the_longest_match(text, limit):
    draft = SuffixAutomaton(text).draft(limit)
    length = longest_match(text)
    assert draft.match_length == length
    if length < MIN_MATCH:
        assert draft.tokens == []
    else:
        assert draft.tokens in [continuation(text, i, limit) for i in places(text, length)]


@given(MATCHED, st.integers(1, 20))
@example([1, 2, 8, 1, 2, 9, 1, 2], 1)
@example([1, 2, 8, 3, 1, 2, 8, 1, 2, 9, 4, 1, 2], 1)
def test_the_draft_follows_the_latest_occurrence(text, limit):
    draft = SuffixAutomaton(text).draft(limit)
    assert draft.match_length >= MIN_MATCH
    assert draft.tokens == continuation(text, places(text, draft.match_length)[-1], limit)


@given(TEXTS, st.integers(0, 60))
def test_a_text_that_grows_guesses_as_one_that_was_given_whole(text, cut):
    grown = SuffixAutomaton(text[:cut])
    grown.draft(5)
    for token in text[cut:]:
        grown.append(token)
    assert len(grown) == len(text)
    assert grown.draft(5) == SuffixAutomaton(text).draft(5)


@given(st.lists(LETTERS, min_size=2, max_size=5), st.integers(2, 40))
def test_a_repeated_text_is_guessed_to_repeat(period, times):
    draft = SuffixAutomaton(period * times).draft(3 * len(period))
    assert draft.match_length >= len(period) * (times - 1)
    assert draft.tokens == period * 3


@given(TEXTS)
def test_there_are_at_most_two_states_per_token(text):
    automaton = SuffixAutomaton(text)
    assert len(automaton._link) <= 2 * len(text) + 1
    assert sum(map(len, automaton._next)) <= 3 * len(text) + 1


def test_a_passage_that_comes_again_is_guessed_to_its_end():
    passage = list(range(100, 140))
    automaton = SuffixAutomaton([1, 2, *passage, 3, *passage[:2]])
    assert automaton.draft(16) == (2, passage[2:18])
    automaton.extend(passage[2:36])
    assert automaton.draft(5) == (36, [*passage[36:], 3])
