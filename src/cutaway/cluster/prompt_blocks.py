"""Which replicas have which blocks of prompts: a bit for each replica, by the keys of blocks.

It is what was sent where, as far back as there is room.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from cutaway.cluster.prompts import Prompt
from cutaway.compute.backends import KV_BLOCK


class PromptMatches:
    """Which replicas have how much of one prompt.

    levels    (bits of replicas, leading blocks that they have), ascending
    next_key  of the first block that no replica has; None: there is none
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
    """Of all prompts that were sent; most: blocks, evicted least recently used first.

    A block's parent is written after it, hence evicted later: a replica that is known to have a
    block is known to have all before it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.by_key: OrderedDict[int, int] = OrderedDict()

    def of(self, prompt: Prompt) -> PromptMatches:
        """Which replicas have how much of it."""
        return PromptMatches(self.by_key, prompt)

    def learn(self, bit: int, keys: Sequence[int]) -> None:
        """A replica has these blocks; the first of them becomes the most recently used."""
        for key in reversed(keys):
            who = self.by_key.get(key)
            self.by_key[key] = who | bit if who else bit  # an object that many share
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
