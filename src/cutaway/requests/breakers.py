"""DRY's breakers: from strings to the ids of the tokens that contain one."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from cutaway.errors import InputError
from cutaway.text import Tokenizer

DEFAULT = ("\n", ":", '"', "*")
"""llama.cpp's."""


def with_breakers(given: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
    """The keywords of a request with ``dry_breakers`` as token ids, where DRY is asked for."""
    multiplier = given.get("dry_multiplier")
    if "dry_breakers" not in given and not (isinstance(multiplier, Real) and bool(multiplier)):
        return given
    named = given.get("dry_breakers", DEFAULT)
    if not isinstance(named, (list, tuple)):
        return given  # the sampler refuses it by name
    try:
        strings = [part.encode() for part in named if isinstance(part, str)]
    except UnicodeEncodeError:
        raise InputError("dry_breakers must be whole characters, not halves of them") from None
    if b"" in strings:
        raise InputError("dry_breakers: an empty string is in every token; leave it out")
    ids = [part for part in named if not isinstance(part, str)]
    if strings:
        tokens = enumerate(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
        ids += [i for i, data in tokens if any(part in data for part in strings)]
    return {**given, "dry_breakers": ids}
