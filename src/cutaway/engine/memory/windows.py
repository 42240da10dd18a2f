"""Sliding windows: which blocks have theirs, and which keep it without a reader.

The window of a block is the part that layers with sliding-window attention stored in it. It is
freed when no sequence reads it, unless a later text is likely to continue there: the windows before
the end of a prompt or a text, and before a place where two texts differed, are kept while there is
room; the least recently used are freed first.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import takewhile

from cutaway.compute.backends import KVLayout


class Windows:
    """The windows of one BlockManager's blocks, by id.

    window      tokens to which the layer with the widest window attends, the row's own included
    block       tokens per block
    max_stored  how many blocks may have their windows before unread ones are freed
    read        how many windows were being read at the last ``trim``
    on_loss     is called with a block before its window is freed to make room
    """

    def __init__(self, window: int, block: int, max_stored: int = 0) -> None:
        self.window, self.block, self.max_stored = window, block, max_stored
        self.read = 0
        self.on_loss: Callable[[int], object] = lambda _: None
        self._readers: Counter[int] = Counter()  # none is at zero
        self._unread: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._keep: set[int] = set()  # windows to keep once they have no reader
        self._changes: list[tuple[int, int]] = []

    @property
    def num_stored(self) -> int:
        """How many blocks have their windows."""
        return self.read + len(self._unread)

    def num_out_of_window(self, position: int) -> int:
        """How many of a text's first blocks no row at this position or later attends to."""
        return max(0, position - self.window + 1) // self.block

    def are_stored(self, ids: Sequence[int]) -> bool:
        """Whether the windows of all these blocks can be read."""
        return self.count_stored(ids) == len(ids)

    def count_stored(self, ids: Sequence[int]) -> int:
        """Return how many of these blocks' windows can be read, up to the first that cannot."""
        return sum(1 for _ in takewhile(lambda i: i in self._readers or i in self._unread, ids))

    def usable(self, ids: Sequence[int]) -> int:
        """Return after how many of a text's first blocks it can continue with the stored windows.

        If blocks remain, two texts differ after the last one: windows before its end are kept from
        now on, so that a third such text finds them.
        """
        best = there = 0  # there: stored windows in a row, up to this block
        for count, i in enumerate(ids, 1):
            there = there + 1 if self.are_stored((i,)) else 0
            if there >= count - self.num_out_of_window(count * self.block):
                best = count
        if best < len(ids):
            self._keep.update(ids[self.num_out_of_window(len(ids) * self.block) :])
        return best

    # -- who reads -------------------------------------------------------------------------------

    def begin(self, ids: Iterable[int]) -> None:
        """Begin to read the windows of these blocks, new or stored."""
        for i in ids:
            self._unread.pop(i, None)
            self._readers[i] += 1

    def end(self, ids: Iterable[int], keep: Container[int] = ()) -> None:
        """Stop reading. keep: blocks that keep their windows without a reader."""
        for i in ids:
            if i in keep:
                self._keep.add(i)
            self._readers[i] -= 1
            if self._readers[i]:
                continue
            del self._readers[i]
            if i in self._keep:
                self._unread[i] = None
            else:
                self._free(i)

    def take_over(self, block_id: int, equal_id: int) -> None:
        """Let a reader of a block's window read the window of an equal block instead."""
        if not self.are_stored((equal_id,)):
            self._changes.append((block_id, equal_id))
        self.begin((equal_id,))
        self.end((block_id,))

    def forget(self, block_id: int) -> None:
        """Free a block's window, because the block will hold another text."""
        self._keep.discard(block_id)
        if block_id in self._unread:
            del self._unread[block_id]
            self._free(block_id)

    def trim(self, read: int) -> None:
        """Free unread windows until there is room for the ``read`` windows of the next step."""
        self.read = read
        while self._unread and self.num_stored > self.max_stored:
            block_id = next(iter(self._unread))
            self.on_loss(block_id)
            del self._unread[block_id]
            self._keep.discard(block_id)
            self._free(block_id)

    def settle(self, copy_windows: Callable[[list[tuple[int, int]]], object]) -> None:
        """Make the pending copies with ``Backend.copy_windows``; call it before the next run."""
        changes = list(self._changes)
        copy_windows(changes)
        del self._changes[: len(changes)]  # only now: an exception in the copying loses no change

    def reset(self, published: Container[int], count: int) -> None:
        """Drop all readers; of blocks 0 … count - 1 keep the published ones' windows.

        A window is not kept where a pending copy may not have been made.
        """
        unsure = {i for change in self._changes for i in change}
        stored = [*self._unread, *self._readers]
        retained = dict.fromkeys(i for i in stored if i in published and i not in unsure)
        self._changes = [(i, -1) for i in range(count) if i not in retained]
        self._readers, self._unread, self._keep = Counter(), OrderedDict(retained), set(retained)

    def _free(self, block_id: int) -> None:
        self._changes.append((block_id, -1))


def windows_of(kv: KVLayout, kv_blocks: int, context: int, rows: int) -> Windows | None:
    """Return the windows of a backend's blocks; None if no layer has a sliding window.

    For each context that fits into the KV blocks there is room for ``KVLayout.window_blocks``.
    """
    if not kv.window:
        return None
    contexts = max(1, kv_blocks * kv.block_tokens // context)
    return Windows(kv.window, kv.block_tokens, contexts * kv.window_blocks(rows))
