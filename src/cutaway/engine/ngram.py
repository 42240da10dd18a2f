"""N-gram speculation (prompt lookup): draft tokens that followed the same tokens before."""

from collections.abc import Iterable
from typing import NamedTuple

MIN_MATCH = 2  # after one equal token nearly anything may follow
REFRESHED = 16  # states whose end is updated per token; aaaa… would have as many as tokens
ROOT, NONE = 0, -1


class Draft(NamedTuple):
    """What may come next.

    match_length  tokens of the longest suffix of the text that occurred before
    tokens        what followed there; empty where the match is shorter than MIN_MATCH
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
        self._resume = 0  # where the match's earlier occurrence ended: the draft starts here
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
        """At most ``limit`` tokens that may follow.

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
        """The state of exactly state's longest substring and token, split off where needed."""
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
        """This state and its suffixes now end at the end of the text; the longest matter most."""
        for _ in range(REFRESHED):
            if state == ROOT:
                return
            self._end[state] = len(self)
            state = self._link[state]
