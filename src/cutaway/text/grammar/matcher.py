"""The state of one text under a grammar, the grammar mask of its next token, forced tokens.

Knows what a mask of llguidance lets through and must not: a key twice in one object, and a call
that an answer repeats. Refuses to know how grammars are compiled.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar.json_values import as_written
from cutaway.text.grammar.llguidance_source import reason
from cutaway.text.grammar.partial_json import PartialJson
from cutaway.text.grammar.schema_checks import ANSWER, WHOLE, Judge
from cutaway.text.grammar.schemas import is_open, subschemas

if TYPE_CHECKING:
    from llguidance import LLMatcher


# -- no key twice ------------------------------------------------------------------------------
# The tokens that would write a key twice in one object are taken out of masks.

_ELSEWHERE = {"const", "enum", "$ref", "anyOf", "oneOf", "allOf"}
"""What says what a value is, beside its type."""


def has_open_objects(schema: Any) -> bool:
    """Whether any object of a schema may have keys that the schema does not name."""
    if not isinstance(schema, dict):
        return schema is not False
    named = schema.get("type", [] if _ELSEWHERE & {*schema} else ["object", "array"])
    if "object" in named and is_open(schema):
        return True
    if "array" in named and "items" not in schema:
        return True
    return any(has_open_objects(one) for name, one in subschemas(schema) if name != "not")


class QuotedTokens:
    """The tokens of a vocabulary that may end a key.

    data    id -> bytes, of all that have a quote
    inside  what a token has between two quotes -> the ids of those that have it
    twice   those that have the same between quotes twice
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.data = {i: text for i, text in enumerate(texts) if b'"' in text}
        self.inside: dict[bytes, list[int]] = {}
        self.twice: list[int] = []
        for i, text in self.data.items():
            parts = text.split(b'"')[1:-1]
            for between in {*parts}:
                self.inside.setdefault(between, []).append(i)
            if len({*parts}) < len(parts):
                self.twice.append(i)
        self._by_first: dict[int, list[int]] = {}
        for i, text in self.data.items():
            self._by_first.setdefault(text[0], []).append(i)

    def beginning(self, text: bytes) -> list[int]:
        """Those that begin with a text."""
        return [i for i in self._by_first.get(text[0], ()) if self.data[i].startswith(text)]


class UniqueKeys:
    """What was written of one JSON text, and which tokens would write a key of it again."""

    def __init__(self, tokens: QuotedTokens) -> None:
        self._tokens = tokens
        self._reader: PartialJson | None = PartialJson()  # None where it is too deep to be read
        self._keys: set[bytes] = set()  # of all objects, as they are written

    def fork(self) -> Self:
        """Another in the same state."""
        made = type(self)(self._tokens)
        made._reader, made._keys = self._reader and self._reader.fork(), self._keys.copy()
        return made

    def accept(self, data: bytes) -> None:
        """The bytes of a token came."""
        reader = self._reader
        if reader is None:
            return
        try:
            for _ in reader.read(data):
                if (key := reader.latest_key) is not None:
                    self._keys.add(as_written(key).encode(errors="surrogatepass"))
        except CutawayError:
            self._reader = None

    @property
    def repeated(self) -> bool:
        """Whether a key is there twice."""
        return self._reader is not None and self._reader.repeated

    def without_repeated(self, mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """A mask without the tokens that write a key again."""
        refused = [i for i in self._suspects() if mask[i >> 5] >> (i & 31) & 1 and self._repeats(i)]
        if not refused:
            return mask
        left = mask.copy()
        for i in refused:
            left[i >> 5] &= ~np.uint32(1 << (i & 31))
        return left

    def _suspects(self) -> list[int]:
        reader, tokens = self._reader, self._tokens
        if reader is None:
            return []
        found = [i for between in tokens.inside if between in self._keys
                 for i in tokens.inside[between]]  # fmt: skip
        if reader.in_key:
            begun = reader.key
            if b"\\u" in begun:  # as a character may be spelled another time
                return [*tokens.data]
            for key in self._keys:
                if key.startswith(begun):
                    found += tokens.beginning(key[len(begun) :] + b'"')
        return [*found, *tokens.twice]

    def _repeats(self, token_id: int) -> bool:
        assert self._reader is not None
        ahead = self._reader.fork()
        try:
            for _ in ahead.read(self._tokens.data[token_id]):
                pass
        except CutawayError:
            return False
        return ahead.repeated


# -- calls that one answer repeats -------------------------------------------------------------
# How a grammar marks its calls, by how llguidance keeps what rules matched, and whether one is
# there twice.

_KEPT = "__LIST_APPEND:"
"""Before the name of a capture: llguidance then keeps what is equal to the one before it, too."""
_GIVEN, _CALLED = f"{_KEPT}given_", f"{_KEPT}called_"


def marked_call(index: int, before: str, behind: str) -> list[str]:
    """Lark of the rule ``called_{index}``, a call with these texts around its arguments."""
    return [
        f'given_{index}[capture="{_GIVEN}{index}"]: arguments_{index}',
        f'called_{index}[capture="{_CALLED}{index}"]: {before} given_{index} {behind}',
    ]


def marks_calls(lark: str) -> bool:
    """Whether a grammar's answers end behind a call that they repeat."""
    return f'[capture="{_CALLED}' in lark


def without_marks(lark: str) -> str:
    """The same without captures of calls."""
    return "\n".join(line for line in lark.split("\n") if f'[capture="{_KEPT}' not in line)


def repeats_call(captures: Iterable[tuple[str, bytes]]) -> bool:
    """Whether a tool was called twice with the same arguments; ids of calls do not count."""
    calls, given = set[tuple[str, bytes]](), b""
    for name, data in captures:
        if name.startswith(_GIVEN):
            given = data
        elif name.startswith(_CALLED):
            if (name, given) in calls:
                return True
            calls.add((name, given))
            given = b""
    return False


# -- the matcher -------------------------------------------------------------------------------

Mask = NDArray[np.uint32]


@dataclass(frozen=True)
class Ends:
    """What a matcher knows of its vocabulary.

    words  of 32 bits in a mask
    ids    of the tokens that end a text
    spell  the bytes of tokens
    """

    words: int
    ids: tuple[int, ...]
    spell: Callable[[list[int]], bytes]

    def without(self, mask: Mask) -> Mask:
        """The mask without the tokens that end a text."""
        left = mask.copy()
        for i in self.ids:
            left[i >> 5] &= ~np.uint32(1 << (i & 31))
        return left


class GrammarState:
    """The state of one text under one grammar, and the judge of whether it may end.

    keys   of its objects, where they may be any
    calls  another state of the same grammar, where a call that is there already is the last: no
           mask is asked of it, for which llguidance reads ahead, and marks, calls that are forced
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        judge: Judge | None,
        ends: Ends,
        keys: UniqueKeys | None = None,
        calls: "LLMatcher | None" = None,
    ) -> None:
        self.matcher, self.keys, self._judge, self._ends = matcher, keys, judge, ends
        self._calls = calls
        self._token_ids: list[int] = []
        self._taken: bool | None = None  # as the judge has it; None before it is asked

    def fork(self) -> Self:
        """Another in the same state."""
        keys, calls = self.keys and self.keys.fork(), self._calls and self._calls.deep_copy()
        made = type(self)(self.matcher.deep_copy(), self._judge, self._ends, keys, calls)
        made._token_ids, made._taken = self._token_ids.copy(), self._taken
        return made

    def mask(self) -> Mask:
        """Which tokens may come next; an end token only where the judge takes the text."""
        mask = np.empty(self._ends.words, np.uint32)
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        if self.keys:
            mask = self.keys.without_repeated(mask)
            if not mask.any():
                raise InputError("json_schema", ": all keys that may follow are there already")
        if self._judge and self.matcher.is_accepting() and not self._is_taken():
            mask = self._ends.without(mask)
            if not mask.any():
                raise InputError(
                    "json_schema",
                    ": the text is whole, but does not keep to the schema, of which "
                    "the grammar reads a keyword wrongly: write the schema in another way",
                )
        return mask

    def accept(self, token_id: int) -> None:
        """A token came."""
        self.matcher.consume_token(token_id)
        self._check()
        if self._judge:
            self._token_ids.append(token_id)
            self._taken = None
        if self.keys:
            self.keys.accept(self._ends.spell([token_id]))
        if self._calls:
            self._calls.consume_token(token_id)

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return self.matcher.is_accepting() and (self._judge is None or self._is_taken())

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        if self._calls and repeats_call(self._calls.get_captures()):
            return True
        stopped = self.matcher.is_stopped() and not self.matcher.is_error()
        return stopped and (self._judge is None or self._is_taken())

    def _is_taken(self) -> bool:
        assert self._judge is not None
        if self._taken is None:
            self._taken = all(self._judge.takes(name, data) for name, data in self._written())
        return self._taken

    def _written(self) -> list[tuple[str, bytes]]:
        """What was written under schemas, with the names of their rules."""
        assert self._judge is not None
        if WHOLE in self._judge.names:
            return [(WHOLE, self._ends.spell(self._token_ids))]
        matcher = self.matcher
        if ANSWER in self._judge.names and not matcher.is_stopped():  # a number may go on
            matcher = matcher.deep_copy()
            matcher.consume_token(self._ends.ids[0])
        return matcher.get_captures()

    def _check(self) -> None:
        if self.matcher.is_error():
            raise CutawayError(f"the grammar failed{''.join(reason(self.matcher.get_error()))}")


class Matcher:
    """The state of one text under one grammar, or under several of which it must match one.

    Raises CutawayError where the text matches none any more.
    ways  the state under each grammar; None where the text does not match it any more
    """

    def __init__(self, ways: Iterable[GrammarState | None]) -> None:
        self._ways = [*ways]

    def mask(self) -> Mask:
        """Which tokens may come next, the end tokens among them where the text may end."""
        masks = [way.mask() for way in self._open]
        return masks[0] if len(masks) == 1 else np.bitwise_or.reduce(masks)

    def accept(self, token_id: int) -> None:
        """A token came; not for end tokens."""
        if len(self._open) > 1 and self.valid([token_id]):
            self._ways = [
                way if way and way.matcher.validate_tokens([token_id]) else None
                for way in self._ways
            ]
        for way in self._open:
            way.accept(token_id)

    def finish(self, token_id: int) -> None:
        """An allowed end token came; InputError where the grammar does not end with it."""
        if not self.may_end:  # the grammar names the token itself
            self.accept(token_id)
            if not self.may_end:
                raise InputError(
                    "grammar",
                    ": the grammar goes on after an end token, which ends the text: remove "
                    "the token from the grammar",
                )

    def valid(self, token_ids: Sequence[int]) -> int:
        """How many of these may come one after the other."""
        return max(way.matcher.validate_tokens([*token_ids]) for way in self._open)

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model says."""
        first, *others = (way.matcher.compute_ff_tokens() for way in self._open)
        for other in others:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False))
            first = [token_id for token_id, _ in same]
        return first

    def fork(self) -> "Matcher":
        """Another in the same state."""
        return Matcher([way and way.fork() for way in self._ways])

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return any(self.ends)

    @property
    def ends(self) -> tuple[bool | None, ...]:
        """Whether it may end under each grammar; None where it does not match it any more."""
        return tuple(None if way is None else way.may_end for way in self._ways)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return all(way.is_over for way in self._open)

    @property
    def repeats(self) -> bool:
        """Whether a key is there twice in one object."""
        return any(way.keys is not None and way.keys.repeated for way in self._open)

    @property
    def _open(self) -> list[GrammarState]:
        return [way for way in self._ways if way is not None]
