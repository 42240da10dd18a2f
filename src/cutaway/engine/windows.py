"""Sliding windows: which KV blocks still have the keys and values of layers with windows.

The window of a block is what the layers with sliding-window attention stored in it. It is freed
when no sequence reads it, unless a later text is likely to continue there: the windows before the
end of a prompt or a text, and before a place where two texts differed, are kept while there is
room; the least recently used are freed first.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import takewhile

from cutaway.compute.backends import KVLayout


class Windows:
    """The windows of one BlockManager's blocks, by id.

    window  tokens that the widest of the layers attends to, the row's own included
    block   tokens of a block
    most    how many blocks may have their windows before kept ones are freed
    read    how many windows are being read, as of the last ``trim``
    """

    def __init__(self, window: int, block: int, most: int = 0) -> None:
        self.window, self.block, self.most = window, block, most
        self.read = 0
        self._readers: Counter[int] = Counter()  # none is at zero
        self._kept: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._keep: set[int] = set()  # to be kept once nobody reads them
        self._changes: list[tuple[int, int]] = []

    @property
    def held(self) -> int:
        """How many blocks have their windows."""
        return self.read + len(self._kept)

    def num_out_of_window(self, position: int) -> int:
        """How many of a text's first blocks no row at this position or later attends to."""
        return max(0, position - self.window + 1) // self.block

    def are_stored(self, ids: Sequence[int]) -> bool:
        """Whether the windows of all of these can be read."""
        return self.until(ids) == len(ids)

    def until(self, ids: Sequence[int]) -> int:
        """How many of them can be read, up to the first that cannot."""
        return sum(1 for _ in takewhile(lambda i: i in self._readers or i in self._kept, ids))

    def usable(self, ids: Sequence[int]) -> int:
        """How many of a text's blocks have the windows that a continuation needs.

        If not all: two texts differ after the last, so its window is kept from now on.
        """
        best = there = 0  # there: how many in a row, up to this one
        for count, i in enumerate(ids, 1):
            there = there + 1 if self.are_stored((i,)) else 0
            if there >= count - self.num_out_of_window(count * self.block):
                best = count
        if best < len(ids):
            self._keep.update(ids[self.num_out_of_window(len(ids) * self.block) :])
        return best

    # -- who reads -------------------------------------------------------------------------------

    def begin(self, ids: Iterable[int]) -> None:
        """Begin to read: new blocks, or windows that are stored."""
        for i in ids:
            self._kept.pop(i, None)
            self._readers[i] += 1

    def end(self, ids: Iterable[int], keep: Container[int] = ()) -> None:
        """Stop reading. keep: those that are to be kept once they have no reader."""
        for i in ids:
            if i in keep:
                self._keep.add(i)
            self._readers[i] -= 1
            if self._readers[i]:
                continue
            del self._readers[i]
            if i in self._keep:
                self._kept[i] = None
            else:
                self._free(i)

    def take_over(self, own: int, found: int) -> None:
        """Let a reader of a block's window read that of an equal block from now on."""
        if not self.are_stored((found,)):
            self._changes.append((own, found))
        self.begin((found,))
        self.end((own,))

    def forget(self, block_id: int) -> None:
        """The block is to hold another text."""
        self._keep.discard(block_id)
        if block_id in self._kept:
            del self._kept[block_id]
            self._free(block_id)

    def trim(self, read: int) -> None:
        """Free kept windows until ``read`` ones, those of the next step, have room."""
        self.read = read
        while self._kept and self.held > self.most:
            block_id, _ = self._kept.popitem(last=False)
            self._keep.discard(block_id)
            self._free(block_id)

    def settle(self, copy_windows: Callable[[list[tuple[int, int]]], object]) -> None:
        """Have ``Backend.copy_windows`` do what was decided, before the next run."""
        changes = list(self._changes)
        copy_windows(changes)
        del self._changes[: len(changes)]  # now, so that an exception before this loses none

    def reset(self, published: Container[int], count: int) -> None:
        """Let nobody read, and keep the windows of published blocks, of 0 … count - 1.

        Where a copy was decided on and may not have been made, none is kept.
        """
        unsure = {i for change in self._changes for i in change}
        stored = [*self._kept, *self._readers]
        kept = dict.fromkeys(i for i in stored if i in published and i not in unsure)
        self._changes = [(i, -1) for i in range(count) if i not in kept]
        self._readers, self._kept, self._keep = Counter(), OrderedDict(kept), set(kept)

    def _free(self, block_id: int) -> None:
        self._changes.append((block_id, -1))


def windows_of(kv: KVLayout, kv_blocks: int, context: int, rows: int) -> Windows | None:
    """The windows of a backend's blocks; None where no layer has a window.

    For each context that fits into the KV blocks there is room for ``KVLayout.window_blocks``.
    """
    if not kv.window:
        return None
    contexts = max(1, kv_blocks * kv.block_tokens // context)
    return Windows(kv.window, kv.block_tokens, contexts * kv.window_blocks(rows))
