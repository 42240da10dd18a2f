"""Late interaction (ColBERT): settings of models with one embedding per token."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cutaway.errors import FormatError

KEY = "cutaway.embedding.late_interaction"
"""The metadata key under which the fields of ``LateInteraction`` are JSON."""
_MAX_TOKENS = 1 << 20


class LateInteraction(NamedTuple):
    """How queries and documents are tokenized, and which of their tokens have vectors.

    query_id, document_id          the second token of queries and of documents; None: no such token
    query_length, document_length  the largest number of tokens, the second one included
    filled_to, filler              queries are padded with ``filler`` to ``filled_to`` tokens, and
                                   all these have vectors; 0: queries are not padded
    fillers_are_seen               whether tokens attend to the padding
    skipped                        ids of document tokens that have no vector
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
        """Return the settings as a file's metadata."""
        return {KEY: json.dumps(self._asdict())}


def late_interaction(metadata: Mapping[str, Any], tokens: int) -> LateInteraction | None:
    """Read the settings; None if a text has one vector, FormatError for damaged metadata.

    tokens: the size of the vocabulary
    """
    if (text := metadata.get(KEY)) is None:
        return None
    try:
        fields = json.loads(text)
        settings = LateInteraction(**{**fields, "skipped": tuple(fields.get("skipped", ()))})
        sizes = settings.query_length, settings.document_length, settings.filled_to + 1
        kind_ids = [
            number for number in (settings.query_id, settings.document_id) if number is not None
        ]
        ids = [*kind_ids, settings.filler, *settings.skipped]
        good = (
            all(type(number) is int and 0 <= number < tokens for number in ids)
            and all(type(number) is int and 2 < number + 2 <= _MAX_TOKENS for number in sizes)
            and isinstance(settings.fillers_are_seen, bool)
        )
    except (TypeError, ValueError, AttributeError, RecursionError):
        good = False
    if not good:
        raise FormatError(f"metadata key {KEY} is damaged: convert the model again")
    return settings
