"""Remembers which replicas have which blocks of prompts: key of a block -> bits of replicas.

Knows what was sent where, not what the replicas have evicted.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from cutaway.compute.backends import KV_BLOCK
from cutaway.features.cluster.prompts import Prompt


class PromptMatches:
    """How much of one prompt each replica has.

    levels    (bits of replicas, number of leading blocks they have), ascending
    next_key  of the first block that no replica has; None if some replica has all
    """

    def __init__(self, known: Mapping[int, int], prompt: Prompt) -> None:
        self.prompt = prompt
        self.levels: list[tuple[int, int]] = []
        blocks = 0
        for key in prompt.keys:
            who = known.get(key)
            if who is None:
                break
            blocks += 1
            if self.levels and self.levels[-1][0] == who:
                self.levels.pop()
            self.levels.append((who, blocks))
        self.next_key = prompt.keys[blocks] if blocks < len(prompt.keys) else None

    def matched(self, bit: int) -> int:
        """How many tokens of the prompt the replica can take from its cache."""
        blocks = next((blocks for who, blocks in reversed(self.levels) if who & bit), 0)
        return min(blocks, self.prompt.reusable) * KV_BLOCK


class PromptBlocks:
    """The blocks of all prompts that were sent, at most ``most``; least recently used are evicted.

    A block's parent is written after it, so it is evicted later: a replica that is known to have a
    block is known to have all blocks before it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.by_key: OrderedDict[int, int] = OrderedDict()

    def of(self, prompt: Prompt) -> PromptMatches:
        """How much of a prompt each replica has."""
        return PromptMatches(self.by_key, prompt)

    def learn(self, bit: int, keys: Sequence[int]) -> None:
        """Note that a replica has these blocks; the first becomes the most recently used."""
        for key in reversed(keys):
            who = self.by_key.get(key)
            self.by_key[key] = who | bit if who else bit  # reuses an int that many keys share
            self.by_key.move_to_end(key)
        while len(self.by_key) > self._most:
            self.by_key.popitem(last=False)

    def forget(self, bits: int) -> None:
        """Remove these replicas."""
        for key, who in [(key, who) for key, who in self.by_key.items() if who & bits]:
            if who & ~bits:
                self.by_key[key] = who & ~bits
            else:
                del self.by_key[key]
