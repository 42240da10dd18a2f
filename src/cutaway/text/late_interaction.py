"""Late interaction (ColBERT): what a file says of texts whose tokens have a vector each."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cutaway.errors import FormatError

KEY = "cutaway.embedding.late_interaction"
"""Metadata: the fields below as JSON."""
_MOST = 1 << 20


class LateInteraction(NamedTuple):
    """How queries and documents are read, and which of their tokens have vectors.

    query_id, document_id          the token behind a text's first that says which it is
    query_length, document_length  the most tokens, with that one
    filled_to, filler              queries are filled to so many tokens by this token, each of which
                                   has a vector, too; 0: they are not
    fillers_are_seen               whether tokens attend to those
    skipped                        tokens of documents that have no vector
    """

    query_id: int | None = None
    document_id: int | None = None
    query_length: int = 32
    document_length: int = 180
    filled_to: int = 0
    filler: int = 0
    fillers_are_seen: bool = False
    skipped: tuple[int, ...] = ()

    def to_metadata(self) -> dict[str, str]:
        """Of a file."""
        return {KEY: json.dumps(self._asdict())}


def late_interaction(metadata: Mapping[str, Any], tokens: int) -> LateInteraction | None:
    """Read from metadata; None where texts have one vector. FormatError where it is damaged.

    tokens: how many the vocabulary has
    """
    if (said := metadata.get(KEY)) is None:
        return None
    try:
        fields = json.loads(said)
        found = LateInteraction(**{**fields, "skipped": tuple(fields.get("skipped", ()))})
        sizes = found.query_length, found.document_length, found.filled_to + 1
        known = [one for one in (found.query_id, found.document_id) if one is not None]
        ids = [*known, found.filler, *found.skipped]
        good = (
            all(type(one) is int and 0 <= one < tokens for one in ids)
            and all(type(one) is int and 2 < one + 2 <= _MOST for one in sizes)
            and isinstance(found.fillers_are_seen, bool)
        )
    except (TypeError, ValueError, AttributeError, RecursionError):
        good = False
    if not good:
        raise FormatError(f"metadata key {KEY} is damaged: convert the model again")
    return found
