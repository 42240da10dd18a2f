"""No key twice in one object: the tokens that would write one are taken out of masks."""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError
from cutaway.text.grammar.json_keys import is_open
from cutaway.text.grammar.json_values import as_written
from cutaway.text.grammar.partial_json import PartialJson
from cutaway.text.grammar.subschemas import subschemas

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
