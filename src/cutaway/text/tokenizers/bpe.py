"""BPE: the merge loop, and SentencePiece's tokenizer, the "llama" kind.

Knows the merge rule (Kudo and Richardson 2018, as llama.cpp implements it): of all adjacent pairs
whose concatenation is a piece, merge the one with the highest score, the leftmost among equals,
until no pair is left. Unknown text becomes bytes. If a tokenizer.json ranks the pairs themselves,
merging uses these ranks: in a vocabulary that the library trained, some pairs make a piece but are
no merge. ``byte_level`` has the other kind of BPE.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush

from cutaway.errors import FormatError, InputError
from cutaway.text.tokenizers.vocabulary import TOKENS, Kind, Vocabulary, stored_bytes

LONGEST_REMEMBERED = 64  # the longest cached word, in characters; longer ones are rare


def merge(text: str, cost: Callable[[str, str], float | None]) -> list[str]:
    """Merge the characters of ``text`` to parts, and return the parts.

    cost: the cost of merging two neighbours, least first; None if they cannot be merged
    The time is O(n log n) for n characters.
    """
    parts, end = list(text), len(text)
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    queue: list[tuple[float, int, int, int]] = []  # (cost, left, right, characters)

    def pair(left: int, right: int) -> list[tuple[float, int, int, int]]:
        if left < 0 or right >= end:
            return []
        price = cost(parts[left], parts[right])
        size = len(parts[left]) + len(parts[right])
        return [] if price is None else [(price, left, right, size)]

    for left in range(end - 1):
        queue += pair(left, left + 1)
    heapify(queue)
    while queue:
        _, left, right, size = heappop(queue)
        # The entry is stale if a part was merged away (it is empty) or has grown.
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != size:
            continue
        parts[left] += parts[right]
        parts[right] = ""
        after[left] = after[right]
        if after[left] < end:
            before[after[left]] = left
        for entry in pair(before[left], left) + pair(left, after[left]):
            heappush(queue, entry)
    return [part for part in parts if part]


# -- the "llama" kind --------------------------------------------------------------------------
# Hugging Face's ``tokenizers`` needs ranked merges. Deriving these from the scores of Gemma's 262k
# pieces takes 1.4 s before the first token, and the library breaks ties by rank, not by position.
# ``SentencePieceBPE`` needs only a dict of the pieces (0.05 s). If no piece crosses the start of
# a run of spaces, text is cut there: no merge crosses the cut, so the ids stay the same, and words
# can be cached.

SPACE = "▁"  # U+2581, a space in the spelling of pieces
_WORD = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")


class SentencePieceBPE:
    """Ordinary text <-> tokens, by scored merges over characters."""

    drops_text = False

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        scores: Sequence[float] | None,
        merges: Sequence[str] | None,
        space_prefix: bool,
        prefix_once: bool,
        unknown_id: int | None,
    ) -> None:
        """Merge by the ranks of ``merges``; None: by the scores of pieces."""
        # Control, unknown, unused and byte tokens are left out: ordinary text never spells them.
        self.space_prefix, self.prefix_once = space_prefix, prefix_once
        self._vocabulary = vocabulary
        self._pieces = vocabulary.table(Kind.NORMAL, Kind.USER_DEFINED)
        self._scores = scores or ()
        self._ranks = None if merges is None else {pair: i for i, pair in enumerate(merges)}
        self._unknown_id = unknown_id
        self._byte_id = {_byte(text): i for text, i in vocabulary.table(Kind.BYTE).items()}
        self._remember = lru_cache(maxsize=16384)(self._merge)

    def words(self, text: str, *, begins: bool = False) -> Iterator[tuple[int, ...]]:
        """Yield the ids of ordinary text, word by word if that cuts no token.

        A literal U+2581 is read as a space, as SentencePiece does.
        begins: put a space in front; with ``prefix_once``, only if none is there
        """
        escaped = text.replace(" ", SPACE)
        if begins and not (self.prefix_once and escaped.startswith(SPACE)):
            escaped = SPACE + escaped
        # Words are found one at a time: one search of a long text would block other threads.
        words = map(re.Match.group, _WORD.finditer(escaped))
        for word in words if self._cuts_are_safe else [escaped]:
            yield self._remember(word) if len(word) <= LONGEST_REMEMBERED else self._merge(word)

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a normal, user-defined or byte token."""
        text = self._vocabulary.tokens[token_id]
        if int(self._vocabulary.kinds[token_id]) == Kind.BYTE:
            return bytes([_byte(text)])
        return stored_bytes(text.replace(SPACE, " "))

    @cached_property
    def _cuts_are_safe(self) -> bool:
        """Whether every space in a piece is at its beginning."""
        return not any(SPACE in piece.lstrip(SPACE) for piece in self._pieces)

    def _merge(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in merge(word, self._cost):
            token_id = self._pieces.get(piece)
            ids += self._spell(piece) if token_id is None else [token_id]
        return tuple(ids)

    def _cost(self, left: str, right: str) -> float | None:
        token_id = self._pieces.get(left + right)
        if token_id is None:
            return None
        if self._ranks is not None:
            return self._ranks.get(f"{left} {right}")
        return -self._scores[token_id]

    def _spell(self, char: str) -> list[int]:
        """Return the ids for a character that is no piece: byte tokens, else the unknown token."""
        ids = [self._byte_id.get(byte) for byte in char.replace(SPACE, " ").encode()]
        byte_ids = [token_id for token_id in ids if token_id is not None]
        if len(byte_ids) == len(ids):
            return byte_ids
        if self._unknown_id is None:
            raise InputError(
                f"the text holds {char!r}, for which the model's vocabulary has no token: "
                "remove that character"
            )
        return [self._unknown_id]


def _byte(text: str) -> int:
    """Return the byte that a token names: 0x0A for "<0x0A>"."""
    if not re.fullmatch("<0x[0-9A-Fa-f]{2}>", text):
        raise FormatError(f"{TOKENS} marks {text!r} as a byte token, which reads like <0x0A>")
    return int(text[3:5], 16)
