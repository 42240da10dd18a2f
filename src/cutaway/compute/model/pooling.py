"""What a model's file says of vectors of texts: how the rows of a text become one vector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cutaway.compute.model.metadata import MetadataReader

POOLINGS = ("mean", "cls", "last")
_TYPES = ("", *POOLINGS)  # by GGUF's pooling_type; the next is rank


class Pooling(NamedTuple):
    """How vectors are made; None where the file does not say.

    kind        of POOLINGS
    normalize   whether vectors are scaled to length 1
    max_tokens  the most tokens of a text that the model was made for
    refused     a further step that is not supported; "" for none
    """

    kind: str | None = None
    normalize: bool | None = None
    max_tokens: int | None = None
    refused: str = ""


def pooling_from_gguf(metadata: Mapping[str, Any]) -> Pooling:
    """Read from metadata; FormatError naming the key that is absurd."""
    number = MetadataReader(metadata, str(metadata["general.architecture"])).size_or_zero(
        "pooling_type"
    )
    own = MetadataReader(metadata, "cutaway.embedding")
    normalize = None if own.value("normalize") is None else own.flag("normalize", True)
    refused, known = str(own.value("refused", "")), number < len(_TYPES)
    return Pooling(
        (_TYPES[number] or None) if known else None,
        normalize,
        own.size_or_zero("max_tokens") or None,
        refused or ("" if known else f"pooling_type {number}"),
    )
