"""Constraint: the protocol that tells the loop which tokens may come (constrained decoding).

This module also has the vocabulary as constraints need it: the bytes of each token, and masks. A
mask has a bit for each token, set where the token is allowed. The other modules of this folder
define the constraints, and params.py makes them from a request's settings.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.engine.limits import Limits
from cutaway.errors import CutawayError

Mask = NDArray[np.uint32]
"""Words (ceil(vocab / 32),): bit i % 32 of word i // 32 is set where token i may come."""
Allowed = NDArray[np.bool_]

_MOST_KEPT = 64
_MOST_AUTOMATON_BYTES = 32 << 20
_MOST_MASKS = 64  # that an automaton keeps
_TAIL = 512  # the last tokens of a prompt, which checks read

LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""


# -- the seam --------------------------------------------------------------------------------------


class Constraint(Protocol):
    """Says which tokens may come next, by masks. Each sequence has a constraint of its own.

    An exception in a method ends only its own sequence (guest_code.py). The default methods suit a
    constraint that forces no token, ends no sequence and has no checks.
    """

    def mask(self) -> Mask | None:
        """Which tokens may come next; None: all."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance by a token. A forced token may lie outside a mask, but not a grammar's."""
        ...

    def fork(self) -> Self:
        """Return an independent copy in the same state; one with parts forks these, too."""
        return copy(self)

    def find_forced_tokens(self) -> Sequence[int]:
        """Return the next tokens, while masks allow only one each; they become draft tokens."""
        return ()

    @property
    def is_over(self) -> bool:
        """Whether only an end token may come; the sequence then ends without another step."""
        return False

    @property
    def checks(self) -> Sequence[str]:
        """The names of its checks. Only checks lead to dead ends, from which a text backtracks."""
        return ()

    @property
    def refused_by(self) -> tuple[str, ...]:
        """The names of the checks, or the thinking budget, that refused tokens at the last mask."""
        return ()


def masks_along(
    constraint: Constraint, token_ids: Sequence[int], *, forced: bool = False
) -> list[Mask | None]:
    """Return the masks before each of these tokens and after the last; stop at a forbidden one.

    forced: accept the tokens even where a mask forbids them
    """
    masks = [constraint.mask()]
    ahead = constraint.fork() if token_ids else constraint
    for token_id in token_ids:
        if not (forced or allows(masks[-1], token_id)):
            break
        try:
            ahead.accept(token_id)
            mask = ahead.mask()
            if mask is not None and not mask.any():  # a dead end, for the step that gets there
                break
            masks.append(mask)
        except CutawayError:  # an error for the step that gets there
            break
    return masks


# -- masks, and the bytes of tokens ----------------------------------------------------------------


def pack_mask(allowed: Allowed) -> Mask:
    """Pack one truth value per token, (vocab,), into a mask."""
    words = np.zeros(-(-len(allowed) // 32) * 32, np.bool_)
    words[: len(allowed)] = allowed
    return np.packbits(words, bitorder="little").view("<u4").astype(np.uint32)


def allows(mask: Mask | None, token_id: int) -> bool:
    """Return whether a mask allows a token; None allows all."""
    return mask is None or bool(mask[token_id >> 5] >> np.uint32(token_id & 31) & np.uint32(1))


def unpack_mask(mask: Mask, size: int) -> Allowed:
    """Return the truth value of each token, (size,), that a mask has."""
    return np.unpackbits(mask.astype("<u4").view(np.uint8), count=size, bitorder="little").view(
        np.bool_
    )


def missing_bytes(data: bytes) -> int:
    """Return how many bytes the last character of UTF-8 data lacks; 0 if it is complete."""
    for size, byte in enumerate(reversed(data[1 - LONGEST_CHARACTER :]), 1):
        if byte < 0x80 or byte >= 0xF8:
            return 0
        if byte >= 0xC0:
            return max(2 + (byte >= 0xE0) + (byte >= 0xF0) - size, 0)
    return 0


@dataclass
class ConstraintVocabulary:
    """The tokens of a model as a constraint needs them; made once, shared by all sequences."""

    limits: Limits
    token_bytes: Callable[[int], bytes]
    _automata: dict[tuple[str, ...], "WordAutomaton"] = field(default_factory=dict)
    _heads: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    _holding: dict[re.Pattern[bytes] | None, Allowed] = field(default_factory=dict)

    def mask_of(self, token_ids: Iterable[int]) -> Mask:
        """Return the mask of these tokens and no others."""
        allowed = np.zeros(self.limits.vocab_size, np.bool_)
        allowed[list(token_ids)] = True
        return pack_mask(allowed)

    def mask_without(self, token_ids: Iterable[int]) -> Mask:
        """Return the mask of all tokens but these."""
        allowed = np.ones(self.limits.vocab_size, np.bool_)
        allowed[list(token_ids)] = False
        return pack_mask(allowed)

    def tail(self, token_ids: Sequence[int]) -> bytes:
        """Return the last bytes of a text, as many as checks read."""
        return b"".join(map(self.token_bytes, token_ids[-_TAIL:]))

    def words(self, words: tuple[str, ...]) -> "WordAutomaton":
        """Return the automaton of these strings; the newest automata are kept."""
        if words not in self._automata:
            automaton = WordAutomaton([word.encode() for word in words], self)
            while (
                self._automata and self._kept_bytes() + automaton.most_bytes > _MOST_AUTOMATON_BYTES
            ):
                del self._automata[next(iter(self._automata))]
            self._automata[words] = automaton
        return self._automata[words]

    def _kept_bytes(self) -> int:
        return sum(automaton.most_bytes for automaton in self._automata.values())

    @cached_property
    def data(self) -> list[bytes]:
        """The bytes of each token, by token id."""
        return [self.token_bytes(i) for i in range(self.limits.vocab_size)]

    @cached_property
    def missing_bytes(self) -> NDArray[np.int8]:
        """How many bytes the last character of each token lacks, (vocab,)."""
        return np.array([missing_bytes(data) for data in self.data], np.int8)

    @cached_property
    def byte_tokens(self) -> dict[int, int]:
        """Byte → the token that consists of this byte alone."""
        return {data[0]: i for i, data in reversed([*enumerate(self.data)]) if len(data) == 1}

    @cached_property
    def alike(self) -> dict[bytes, list[int]]:
        """Tokens that differ only in white space at their ends, by their bytes between these."""
        groups: dict[bytes, list[int]] = {}
        for i, data in enumerate(self.data):
            if data:
                groups.setdefault(data.strip(), []).append(i)
        return groups

    def heads(self, length: int) -> NDArray[np.int64]:
        """Return each token's first bytes as a number, (vocab,); -1 for a token without more."""
        if length not in self._heads:
            heads = [
                int.from_bytes(d[:length], "big") if len(d) > length else -1 for d in self.data
            ]
            self._heads[length] = np.array(heads, np.int64)
        return self._heads[length]

    def holding(self, pattern: re.Pattern[bytes] | None) -> Allowed:
        """Return which tokens' bytes match a pattern anywhere; for None, which have bytes."""
        if pattern not in self._holding:
            while len(self._holding) >= _MOST_KEPT:
                del self._holding[next(iter(self._holding))]
            matches = [bool(d and (pattern is None or pattern.search(d))) for d in self.data]
            self._holding[pattern] = np.array(matches, np.bool_)
        return self._holding[pattern]

    @cached_property
    def columns(self) -> list[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """The tokens that have a j-th byte, and that byte of each, for j = 0, 1, …"""
        data = self.data
        order = sorted(range(len(data)), key=lambda i: -len(data[i]))
        columns, longest = [], len(data[order[0]])
        for j in range(longest):
            while order and len(data[order[-1]]) <= j:
                order.pop()
            column = np.frombuffer(bytes(data[i][j] for i in order), np.uint8)
            columns.append((np.array(order, np.int64), column))
        return columns


class WordAutomaton:
    """Finds any of some byte strings in a stream of tokens (Aho & Corasick 1975).

    A state is the part of a word with which the stream ends. ``_complete`` is the state after a
    whole word; no byte leaves it.
    """

    def __init__(self, words: Sequence[bytes], vocabulary: ConstraintVocabulary) -> None:
        self._vocabulary = vocabulary
        self._next = _transitions(words)
        self._complete = len(self._next) - 1
        self._masks: dict[int, Mask] = {}  # of the last few states

    @property
    def most_bytes(self) -> int:
        """The most bytes of memory that its table and masks take."""
        masks = min(len(self._next), _MOST_MASKS) * self._vocabulary.limits.vocab_size // 8
        return self._next.nbytes + masks

    def advance(self, state: int, token_id: int) -> int:
        """Return the state after a token's bytes."""
        for byte in self._vocabulary.token_bytes(token_id):
            state = int(self._next[state, byte])
        # A forced token may have completed a word; the next word begins anew.
        return 0 if state == self._complete else state

    def mask(self, state: int) -> Mask:
        """Return the mask of the tokens that complete no word."""
        if state not in self._masks:
            states = np.full(self._vocabulary.limits.vocab_size, state, np.int64)
            for ids, column in self._vocabulary.columns:
                states[ids] = self._next[states[ids], column]
            if len(self._masks) >= _MOST_MASKS:
                del self._masks[next(iter(self._masks))]
            self._masks[state] = pack_mask(states != self._complete)
        return self._masks[state]


def _transitions(words: Sequence[bytes]) -> NDArray[np.int32]:
    """Return the automaton's table, (states, 256); the last state is that after a whole word."""
    children: list[dict[int, int]] = [{}]  # of each node of the trie of all words
    is_word = [False]
    for word in words:
        node = 0
        for byte in word:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
                is_word.append(False)
            node = children[node][byte]
        is_word[node] = True
    complete = len(children)
    table = np.zeros((complete + 1, 256), np.int32)
    table[complete] = complete
    ready = deque([(0, 0)])  # a node, and the node of its longest suffix that begins a word
    while ready:
        node, suffix = ready.popleft()
        row = table[suffix].copy()
        for byte, child in children[node].items():
            shorter = int(row[byte]) if node else 0
            row[byte] = complete if is_word[child] or shorter == complete else child
            if row[byte] == child:
                ready.append((child, shorter))
        table[node] = row
    return table
