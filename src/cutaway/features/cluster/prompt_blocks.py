"""The blocks of prompts: the key of each block, and the replicas that were sent it."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from cutaway.compute.backends import KV_BLOCK
from cutaway.engine import Request
from cutaway.engine.limits import shares_blocks


class Prompt(NamedTuple):
    """A request as a router sees it.

    keys      one for each whole block: a hash of the text up to the block's end
    reusable  number of leading blocks that a replica which has them does not compute again
    tokens    number of the prompt's tokens
    texts     number of samples
    """

    keys: tuple[int, ...]
    reusable: int
    tokens: int
    texts: int


def read_prompt(request: Request, texts: int = 1, attention: str | int = "causal") -> Prompt:
    """A request as a router sees it. attention: the model's, see ``Limits.attention``.

    Requests of the same salt share a block only where it does not depend on later tokens. A replica
    always computes the last token, for its logits, and computes all tokens of a prompt that is
    scored.
    """
    ids, salt = request.prompt_token_ids, request.salt_for(attention)
    keys = block_keys(ids, salt) if shares_blocks(attention) and request.run.kv_cache else ()
    reusable = 0 if request.observe.prompt_top else max(len(ids) - 1, 0) // KV_BLOCK
    return Prompt(keys, min(reusable, len(keys)), len(ids), texts)


def block_keys(ids: Sequence[int], salt: tuple[int, str] | None = None) -> tuple[int, ...]:
    """Each whole block's key: a hash of its tokens and of the previous block's key.

    As in the prefix cache, a salt changes the key of the block in which it begins, and all later
    keys. A collision would cost time, and change no bits.
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


# -- the replicas that have each block: key of a block -> bits of replicas -------------------------


class PromptMatches:
    """How much of one prompt each replica has.

    levels    (bits of replicas, number of leading blocks they have), ascending
    next_key  the key of the first block that no replica has; None if some replica has all blocks
    """

    def __init__(self, holders_by_key: Mapping[int, int], prompt: Prompt) -> None:
        self.prompt = prompt
        self.levels: list[tuple[int, int]] = []
        blocks = 0
        for key in prompt.keys:
            holders = holders_by_key.get(key)
            if holders is None:
                break
            blocks += 1
            if self.levels and self.levels[-1][0] == holders:
                self.levels.pop()
            self.levels.append((holders, blocks))
        self.next_key = prompt.keys[blocks] if blocks < len(prompt.keys) else None

    def cached_tokens(self, bit: int) -> int:
        """How many tokens of the prompt the replica can take from its cache."""
        blocks = next((blocks for holders, blocks in reversed(self.levels) if holders & bit), 0)
        return min(blocks, self.prompt.reusable) * KV_BLOCK


class PromptBlocks:
    """The blocks of all prompts that were sent: at most ``capacity``, the most recently used.

    A block's parent is stored after the block, and evicted later. So a replica that is known to
    have a block is known to have all blocks before it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.by_key: OrderedDict[int, int] = OrderedDict()

    def match(self, prompt: Prompt) -> PromptMatches:
        """How much of a prompt each replica has."""
        return PromptMatches(self.by_key, prompt)

    def learn(self, bit: int, keys: Sequence[int]) -> None:
        """Note that a replica has these blocks; the first becomes the most recently used."""
        for key in reversed(keys):
            holders = self.by_key.get(key)
            # Many keys share the int ``bit``; without holders it is stored as it is.
            self.by_key[key] = holders | bit if holders else bit
            self.by_key.move_to_end(key)
        while len(self.by_key) > self._capacity:
            self.by_key.popitem(last=False)

    def forget(self, bits: int) -> None:
        """Remove these replicas."""
        entries = [entry for entry in self.by_key.items() if entry[1] & bits]
        for key, holders in entries:
            if holders & ~bits:
                self.by_key[key] = holders & ~bits
            else:
                del self.by_key[key]
