"""Recurrent states: which KV blocks have one, and which keep it for later texts.

A text's state is stored with the KV block of its last token, and is overwritten as the text grows.
Where the block's last token is the text's, the state belongs to the block as its keys and values
do: any text that begins with the same tokens can go on from there. Such states are kept where a
later text is likely to continue, while there is room; the least recently used are freed first.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from collections.abc import Sequence as Items

from cutaway.compute.backends import KVLayout


class States:
    """The states of one BlockManager's blocks, by id, and beside them those of draft tokens.

    most    how many are kept that no text reads
    drafts  slots of states after draft tokens, for one step
    """

    def __init__(self, most: int, drafts: range) -> None:
        self.most, self.drafts = most, drafts
        self._stored: set[int] = set()
        self._readers: Counter[int] = Counter()  # none is at zero
        # Those that are of all the block, longest unused first.
        self._whole: OrderedDict[int, None] = OrderedDict()
        self._changes: list[tuple[int, int]] = []

    @property
    def held(self) -> int:
        """How many blocks have a state."""
        return len(self._stored)

    def usable(self, ids: Items[int]) -> int:
        """How many of a text's blocks are before the last place from which a text can go on."""
        for count in range(len(ids), 0, -1):
            if ids[count - 1] in self._whole:
                self._whole.move_to_end(ids[count - 1])
                return count
        return 0

    def store(self, block_id: int) -> None:
        """A run stores a state there, of a part of the block for now."""
        self._stored.add(block_id)
        self._whole.pop(block_id, None)

    def complete(self, block_id: int) -> None:
        """The state there is that after the block's last token."""
        self._whole[block_id] = None

    def copy(self, source: int, target: int) -> None:
        """Copy a state before the next run."""
        self._stored.add(target)
        self._changes.append((source, target))

    # -- who reads -------------------------------------------------------------------------------

    def begin(self, block_id: int) -> None:
        """A text is to go on from there."""
        self._readers[block_id] += 1

    def end(self, block_id: int, *, keep: bool) -> None:
        """The text has gone on, or ended. keep: for later texts, where the state is a whole one."""
        self._readers[block_id] -= 1
        if self._readers[block_id]:
            return
        del self._readers[block_id]
        if not (keep and block_id in self._whole):
            self.forget(block_id)

    def take_over(self, own: int, found: int) -> None:
        """Let who reads a block's state read that of an equal block from now on."""
        if own in self._whole and found not in self._whole:
            self.copy(own, found)
            self.complete(found)
        if readers := self._readers.pop(own, 0):
            self._readers[found] += readers

    def forget(self, block_id: int) -> None:
        """Free a block's state; the block may hold another text soon."""
        self._whole.pop(block_id, None)
        if block_id in self._stored:
            self._stored.remove(block_id)
            self._changes.append((block_id, -1))

    def trim(self) -> None:
        """Free kept states that are too many."""
        unread = [i for i in self._whole if i not in self._readers]
        for block_id in unread[: max(len(unread) - self.most, 0)]:
            self.forget(block_id)

    def settle(self, copy_states: Callable[[list[tuple[int, int]]], object]) -> None:
        """Have ``Backend.copy_states`` do what was decided, before the next run."""
        changes = list(self._changes)
        copy_states(changes)
        del self._changes[: len(changes)]  # now, so that an exception before this loses none

    def reset(self, published: Container[int], count: int) -> None:
        """Let nobody read, and keep the whole states of published blocks, of 0 … count - 1.

        Where a copy was decided on and may not have been made, none is kept.
        """
        unsure = {i for change in self._changes for i in change}
        kept = dict.fromkeys(i for i in self._whole if i in published and i not in unsure)
        self._changes = [(i, -1) for i in range(count) if i not in kept]
        self._stored, self._readers, self._whole = set(kept), Counter(), OrderedDict(kept)


def states_of(kv: KVLayout, kv_blocks: int, drafts: int) -> States | None:
    """The states of a backend's blocks; None where no layer has one."""
    if kv.state is None:
        return None
    return States(kv.kept_states(kv_blocks * kv.block_tokens), range(kv_blocks, kv_blocks + drafts))
