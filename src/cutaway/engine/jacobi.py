"""Jacobi decoding, a form of lookahead: draft tokens that the model drew itself in earlier steps.

A token is argmax(logit + luck(seed, position, token)), so that a text, sampled or not, is the fixed
point of drawing all of its positions at once from one another. Each step does so for the positions
of its draft tokens; after the first wrong one the draws are the next guess of their positions.
Sources: Santilli et al. 2023, arXiv 2305.10427; Fu et al. 2024, arXiv 2402.02057 (the n-grams).
"""

from collections.abc import Sequence as Items

from cutaway.engine.ngram import Draft

CONTEXT = 2
"""A drawn token is remembered by this many tokens before it; with three, fewer are found."""


class JacobiDrafts:
    """What was last drawn at each position to come, and what was last drawn after two tokens."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}  # by position
        self._after: dict[tuple[int, ...], int] = {}

    def learn(
        self, before: Items[int], position: int, drafts: Items[int], drawn: Items[int]
    ) -> None:
        """Note that in one step ``drawn[i]`` was drawn after ``before`` and ``drafts[:i]``.

        before    the last CONTEXT tokens before the step's draft tokens
        position  of the first drawn token
        """
        self._at = {p: token for p, token in self._at.items() if p > position}
        seen = [*before, *drafts]
        for i, token in enumerate(drawn):
            end = len(before) + i
            self._after[tuple(seen[max(end - CONTEXT, 0) : end])] = token
            self._at[position + i] = token

    def draft(self, last: Items[int], position: int, limit: int) -> Draft:
        """``limit`` tokens that may follow the text's last CONTEXT tokens, from this position on.

        Each is the token that was last drawn after the two before it; else the one last drawn at
        its position; else the token before it once more, as a first guess.
        """
        tokens = [*last]
        match_length = CONTEXT if tuple(tokens) in self._after else 0
        for p in range(position, position + limit):
            after = self._after.get(tuple(tokens[-CONTEXT:]))
            tokens.append(self._at.get(p, tokens[-1]) if after is None else after)
        return Draft(match_length, tokens[len(last) :])
