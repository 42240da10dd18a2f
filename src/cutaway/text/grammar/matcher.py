"""The state of one text under a grammar: the grammar mask of its next token, and forced tokens.

Knows two texts that llguidance's masks wrongly allow: a repeated key in an object, and a repeated
call in an answer. Does not know how grammars are compiled.
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
# Masks lose the tokens that would write a key twice in one object.

_ELSEWHERE = {"const", "enum", "$ref", "anyOf", "oneOf", "allOf"}
"""Keywords besides "type" that restrict the type of a value."""


def has_open_objects(schema: Any) -> bool:
    """Return whether any object of a schema may have keys that the schema does not name."""
    if not isinstance(schema, dict):
        return schema is not False
    types = schema.get("type", [] if _ELSEWHERE & {*schema} else ["object", "array"])
    if "object" in types and is_open(schema):
        return True
    if "array" in types and "items" not in schema:
        return True
    return any(
        has_open_objects(subschema) for name, subschema in subschemas(schema) if name != "not"
    )


class QuotedTokens:
    """The tokens of a vocabulary that may end a key, since they have a quote.

    data    id -> bytes
    inside  a text between two neighbouring quotes -> the ids of the tokens that have this text
    twice   ids of the tokens that have the same text between quotes twice
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

    def tokens_that_begin(self, text: bytes) -> list[int]:
        """Return the tokens that begin with a text."""
        return [i for i in self._by_first.get(text[0], ()) if self.data[i].startswith(text)]


class UniqueKeys:
    """The keys of one JSON text so far, and the tokens that would repeat one of them."""

    def __init__(self, tokens: QuotedTokens) -> None:
        self._tokens = tokens
        self._reader: PartialJson | None = PartialJson()  # None once the text is too deep to read
        self._keys: set[bytes] = set()  # of all objects, in their JSON spelling

    def fork(self) -> Self:
        """Return a copy in the same state."""
        copy = type(self)(self._tokens)
        copy._reader, copy._keys = self._reader and self._reader.fork(), self._keys.copy()
        return copy

    def accept(self, data: bytes) -> None:
        """Take the bytes of a token."""
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
        """Whether an object has a key twice."""
        return self._reader is not None and self._reader.repeated

    def without_repeated(self, mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return a mask without the tokens that repeat a key."""
        refused_ids = [
            i for i in self._suspects() if mask[i >> 5] >> (i & 31) & 1 and self._repeats(i)
        ]
        if not refused_ids:
            return mask
        left = mask.copy()
        for i in refused_ids:
            left[i >> 5] &= ~np.uint32(1 << (i & 31))
        return left

    def _suspects(self) -> list[int]:
        reader, tokens = self._reader, self._tokens
        if reader is None:
            return []
        suspects = [i for between in tokens.inside if between in self._keys
                 for i in tokens.inside[between]]  # fmt: skip
        if reader.in_key:
            key_start = reader.key
            if b"\\u" in key_start:  # a character can be escaped in several ways
                return [*tokens.data]
            for key in self._keys:
                if key.startswith(key_start):
                    suspects += tokens.tokens_that_begin(key[len(key_start) :] + b'"')
        return [*suspects, *tokens.twice]

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
# A grammar captures its calls, so that a repeated call can be found.

_LIST_CAPTURE = "__LIST_APPEND:"
"""A prefix of a capture's name: llguidance then keeps all matches, equal ones included."""
_ARGUMENTS_CAPTURE, _CALL_CAPTURE = f"{_LIST_CAPTURE}given_", f"{_LIST_CAPTURE}called_"


def marked_call(index: int, before: str, behind: str) -> list[str]:
    """Return the Lark rule ``called_{index}``: a call, with the texts around its arguments."""
    return [
        f'given_{index}[capture="{_ARGUMENTS_CAPTURE}{index}"]: arguments_{index}',
        f'called_{index}[capture="{_CALL_CAPTURE}{index}"]: {before} given_{index} {behind}',
    ]


def marks_calls(lark: str) -> bool:
    """Return whether a grammar captures calls, so that a repeated call ends the answer."""
    return f'[capture="{_CALL_CAPTURE}' in lark


def without_marks(lark: str) -> str:
    """Return a grammar without the rules that capture calls."""
    return "\n".join(line for line in lark.split("\n") if f'[capture="{_LIST_CAPTURE}' not in line)


def repeats_call(captures: Iterable[tuple[str, bytes]]) -> bool:
    """Return whether two calls have the same tool and arguments; their ids may differ."""
    calls, arguments = set[tuple[str, bytes]](), b""
    for name, data in captures:
        if name.startswith(_ARGUMENTS_CAPTURE):
            arguments = data
        elif name.startswith(_CALL_CAPTURE):
            if (name, arguments) in calls:
                return True
            calls.add((name, arguments))
            arguments = b""
    return False


# -- the matcher -------------------------------------------------------------------------------

Mask = NDArray[np.uint32]


@dataclass(frozen=True)
class Ends:
    """The facts about a vocabulary that a matcher needs.

    words  number of 32-bit words in a mask
    ids    the tokens that end a text
    spell  returns the bytes of tokens
    """

    words: int
    ids: tuple[int, ...]
    spell: Callable[[list[int]], bytes]

    def remove_from(self, mask: Mask) -> Mask:
        """Return a mask without the tokens that end a text."""
        left = mask.copy()
        for i in self.ids:
            left[i >> 5] &= ~np.uint32(1 << (i & 31))
        return left


class GrammarState:
    """The state of one text under one grammar, with a judge of whether the text may end.

    keys   the keys of the text's objects; None unless the schema leaves keys open
    calls  a second state of the grammar, which captures calls; None if calls may repeat. To compute
           a mask, llguidance reads ahead. This state never computes masks, so it also captures
           forced calls
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
        self._verdict: bool | None = None  # of the judge; None before it is asked

    def fork(self) -> Self:
        """Return a copy in the same state."""
        keys, calls = self.keys and self.keys.fork(), self._calls and self._calls.deep_copy()
        copy = type(self)(self.matcher.deep_copy(), self._judge, self._ends, keys, calls)
        copy._token_ids, copy._verdict = self._token_ids.copy(), self._verdict
        return copy

    def mask(self) -> Mask:
        """Return the allowed next tokens, an end token only if the judge accepts the text."""
        mask = np.empty(self._ends.words, np.uint32)
        self.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        if self.keys:
            mask = self.keys.without_repeated(mask)
            if not mask.any():
                raise InputError("json_schema", ": all keys that may follow are there already")
        if self._judge and self.matcher.is_accepting() and not self._is_taken():
            mask = self._ends.remove_from(mask)
            if not mask.any():
                raise InputError(
                    "json_schema",
                    ": the text is whole, but does not keep to the schema, of which "
                    "the grammar reads a keyword wrongly: write the schema in another way",
                )
        return mask

    def accept(self, token_id: int) -> None:
        """Take the next token."""
        self.matcher.consume_token(token_id)
        self._check()
        if self._judge:
            self._token_ids.append(token_id)
            self._verdict = None
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
        if self._verdict is None:
            self._verdict = all(
                self._judge.takes(name, data) for name, data in self._find_captured_texts()
            )
        return self._verdict

    def _find_captured_texts(self) -> list[tuple[str, bytes]]:
        """Return (rule name, text) of each part of the text that a schema constrains."""
        assert self._judge is not None
        if WHOLE in self._judge.names:
            return [(WHOLE, self._ends.spell(self._token_ids))]
        matcher = self.matcher
        if ANSWER in self._judge.names and not matcher.is_stopped():  # a number could continue
            matcher = matcher.deep_copy()
            matcher.consume_token(self._ends.ids[0])
        return matcher.get_captures()

    def _check(self) -> None:
        if self.matcher.is_error():
            raise CutawayError(f"the grammar failed{''.join(reason(self.matcher.get_error()))}")


class Matcher:
    """The state of one text under one or several grammars. The text must match one grammar.

    Raises CutawayError once the text matches none of them.
    ways  the state under each grammar; None once the text no longer matches that grammar
    """

    def __init__(self, ways: Iterable[GrammarState | None]) -> None:
        self._ways = [*ways]

    def mask(self) -> Mask:
        """Return the mask of allowed next tokens; it has the end tokens where the text may end."""
        masks = [way.mask() for way in self._open]
        return masks[0] if len(masks) == 1 else np.bitwise_or.reduce(masks)

    def accept(self, token_id: int) -> None:
        """Take a token that is not an end token."""
        if len(self._open) > 1 and self.valid([token_id]):
            self._ways = [
                way if way and way.matcher.validate_tokens([token_id]) else None
                for way in self._ways
            ]
        for way in self._open:
            way.accept(token_id)

    def finish(self, token_id: int) -> None:
        """Take an allowed end token; InputError if the grammar continues after it."""
        if not self.may_end:  # the grammar itself has the end token
            self.accept(token_id)
            if not self.may_end:
                raise InputError(
                    "grammar",
                    ": the grammar goes on after an end token, which ends the text: remove "
                    "the token from the grammar",
                )

    def valid(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, from the first, may follow in this order."""
        return max(way.matcher.validate_tokens([*token_ids]) for way in self._open)

    def find_forced_tokens(self) -> list[int]:
        """Return the ids of the tokens that must come next, whatever the logits."""
        first, *rest = (way.matcher.compute_ff_tokens() for way in self._open)
        for other in rest:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False))
            first = [token_id for token_id, _ in same]
        return first

    def fork(self) -> "Matcher":
        """Return a copy in the same state."""
        return Matcher([way and way.fork() for way in self._ways])

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return any(self.ends)

    @property
    def ends(self) -> tuple[bool | None, ...]:
        """Whether the text may end under each grammar; None for one that it no longer matches."""
        return tuple(None if way is None else way.may_end for way in self._ways)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return all(way.is_over for way in self._open)

    @property
    def repeats(self) -> bool:
        """Whether an object has a key twice."""
        return any(way.keys is not None and way.keys.repeated for way in self._open)

    @property
    def _open(self) -> list[GrammarState]:
        return [way for way in self._ways if way is not None]
