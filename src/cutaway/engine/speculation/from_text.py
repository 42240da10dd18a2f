"""Drafts from the text itself, without a second model.

N-gram speculation (prompt lookup) drafts the tokens that followed the same tokens before.

Jacobi decoding, a form of lookahead, drafts tokens that the model itself drew in earlier steps. A
token is argmax(logit + luck(seed, position, token)). So a text, sampled or greedy, is the fixed
point of drawing all of its positions at once from one another. Each step does so for the positions
of its draft tokens; draws after the first wrong draft token are the next guesses there.
Sources: Santilli et al. 2023, arXiv 2305.10427; Fu et al. 2024, arXiv 2402.02057 (the n-grams).
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple

# -- n-grams ---------------------------------------------------------------------------------------

MIN_MATCH = 2  # after one equal token nearly anything may follow
REFRESHED = 16  # most states whose end is updated per token; in aaaa… each token would update all
ROOT, NONE = 0, -1


class Draft(NamedTuple):
    """A guess of the next tokens.

    match_length  tokens of the longest suffix of the text that occurred before
    tokens        the tokens that followed there; empty if the match is shorter than MIN_MATCH
    """

    match_length: int
    tokens: list[int]


class SuffixAutomaton:
    """All substrings of a growing text, to find its longest suffix that occurred before.

    Substrings that end at the same places share a state. The link of a state leads to its
    longest suffix that also ends elsewhere, so the link of the whole text is the match.
    Cost: amortised O(1) per token, at most two states.
    Source: Blumer et al. 1985, doi:10.1016/0304-3975(85)90157-4.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._text: list[int] = []
        self._next: list[dict[int, int]] = []  # token → state
        self._length: list[int] = []  # of the state's longest substring
        self._link: list[int] = []
        self._end: list[int] = []  # one past an occurrence: the latest, within REFRESHED
        self._whole = self._add({}, 0, NONE, 0)
        self._resume = 0  # one past the match's earlier occurrence: the draft starts there
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append the tokens in turn."""
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Append the text's next token."""
        self._text.append(token)
        state, new = self._whole, self._add({}, len(self), ROOT, len(self))
        while state != NONE and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state != NONE:
            self._link[new] = self._step(state, token)
        self._whole = new
        self._resume = self._end[self._link[new]]
        self._refresh(self._link[new])

    def draft(self, limit: int) -> Draft:
        """Draft ``limit`` tokens that may follow; none where the match is too short.

        Where the match's continuation reaches the end of the text, the text repeats itself, and so
        does the draft: after abcabc comes abcabc…
        """
        match_length = self._length[self._link[self._whole]] if self._text else 0
        if match_length < MIN_MATCH:
            return Draft(match_length, [])
        start, period = self._resume, len(self) - self._resume
        return Draft(match_length, [self._text[start + i % period] for i in range(limit)])

    def _add(self, following: dict[int, int], length: int, link: int, end: int) -> int:
        self._next.append(following)
        self._length.append(length)
        self._link.append(link)
        self._end.append(end)
        return len(self._next) - 1

    def _step(self, state: int, token: int) -> int:
        """Return the state of state's longest substring + token, splitting it off if needed."""
        target, length = self._next[state][token], self._length[state] + 1
        if self._length[target] == length:
            return target
        split = self._add(self._next[target].copy(), length, self._link[target], self._end[target])
        self._link[target] = split
        while state != NONE and self._next[state].get(token) == target:
            self._next[state][token] = split
            state = self._link[state]
        return split

    def _refresh(self, state: int) -> None:
        """Move the end of this state and of its longest suffixes to the end of the text."""
        for _ in range(REFRESHED):
            if state == ROOT:
                return
            self._end[state] = len(self)
            state = self._link[state]


# -- Jacobi ----------------------------------------------------------------------------------------

CONTEXT = 2
"""Each drawn token is stored under this many tokens before it; with three, fewer are found."""


class JacobiDrafts:
    """The token last drawn at each future position, and after each pair of tokens."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}  # by position
        self._after: dict[tuple[int, ...], int] = {}

    def learn(
        self, before: Items[int], position: int, drafts: Items[int], drawn_tokens: Items[int]
    ) -> None:
        """Note that in one step ``drawn_tokens[i]`` was drawn after ``before`` and ``drafts[:i]``.

        before    the last CONTEXT tokens before the step's draft tokens
        position  of the first drawn token
        """
        self._at = {p: token for p, token in self._at.items() if p > position}
        seen = [*before, *drafts]
        for i, token in enumerate(drawn_tokens):
            end = len(before) + i
            self._after[tuple(seen[max(end - CONTEXT, 0) : end])] = token
            self._at[position + i] = token

    def draft(self, last: Items[int], position: int, limit: int) -> Draft:
        """Draft ``limit`` tokens after the text's last CONTEXT tokens, from this position on.

        Each is the token last drawn after the two tokens before it; else the token last drawn at
        its position; else, as a first guess, a repetition of the token before it.
        """
        tokens = [*last]
        match_length = CONTEXT if tuple(tokens) in self._after else 0
        for p in range(position, position + limit):
            after = self._after.get(tuple(tokens[-CONTEXT:]))
            tokens.append(self._at.get(p, tokens[-1]) if after is None else after)
        return Draft(match_length, tokens[len(last) :])
