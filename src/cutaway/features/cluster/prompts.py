"""What a router knows of a prompt: the keys of its blocks, and how many rows it costs."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from cutaway.compute.backends import KV_BLOCK
from cutaway.engine import Request
from cutaway.engine.limits import shares_blocks


class Prompt(NamedTuple):
    """What a router knows of a request.

    keys      of its whole blocks, each a hash of the text up to the block's end
    reusable  how many of these are not computed again by a replica that has them
    tokens    number of the prompt's tokens
    texts     number of samples
    """

    keys: tuple[int, ...]
    reusable: int
    tokens: int
    texts: int


def read_prompt(request: Request, texts: int = 1, attention: str | int = "causal") -> Prompt:
    """A request as a router sees it. attention: the model's, see ``Limits.attention``.

    Blocks are shared only where they do not depend on later tokens. The last token is always
    computed, for its logits; all tokens are where the prompt is scored.
    """
    ids, salt = request.prompt_token_ids, request.salt
    keys = block_keys(ids, salt) if shares_blocks(attention) and request.run.kv_cache else ()
    known = 0 if request.observe.prompt_top else max(len(ids) - 1, 0) // KV_BLOCK
    return Prompt(keys, min(known, len(keys)), len(ids), texts)


def block_keys(ids: Sequence[int], salt: tuple[int, str] | None = None) -> tuple[int, ...]:
    """A number for each whole block: a hash of its tokens and of the key before it.

    As in the prefix cache, a salt changes the keys from the block on in which it begins. A
    collision would cost time, and change no bits.
    """
    try:
        tokens = np.array(ids[: len(ids) // KV_BLOCK * KV_BLOCK], "<i8").tobytes()
    except OverflowError:  # no model has such an id: the replica refuses it
        return ()
    keys, key, size = [], b"", 8 * KV_BLOCK
    for place, start in enumerate(range(0, len(tokens), size)):
        if salt and salt[0] // KV_BLOCK == place:
            key += salt[1].encode()
        key = digest(key + tokens[start : start + size])
        keys.append(int.from_bytes(key, "little"))
    return tuple(keys)


def digest(data: bytes) -> bytes:
    """Eight bytes, the same in every process."""
    return blake2b(data, digest_size=8).digest()
