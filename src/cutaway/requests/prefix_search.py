"""How far a text can continue with blocks in memory and in a store, whose parts may be missing.

Knows what layers with sliding windows or states need. Takes a few steps for each block of a text.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import takewhile

from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.store import BlockPart


def longest_stored(
    blocks: BlockManager,
    has: Callable[[bytes, BlockPart], bool],
    names: Sequence[bytes],
    published_ids: Sequence[int],
    usable: int,
) -> int:
    """Return with how many blocks a text can continue, if what memory lacks is read.

    has            whether the store has a part of a block, by the block's name
    names          of the text's whole blocks
    published_ids  the blocks in memory that it begins with
    usable         how many of these it can continue with already
    """
    has, num_published = cache(has), len(published_ids)
    further = takewhile(lambda name: has(name, BlockPart.KV), names[num_published:])
    longest = num_published + sum(1 for _ in further)
    if longest == usable:
        return usable
    windows, states = blocks.windows, blocks.states
    in_memory = _gaps(not windows or windows.are_stored((i,)) for i in published_ids)
    on_disk = {
        part: _gaps(n < usable or has(name, part) for n, name in enumerate(names[:longest]))
        for part in (BlockPart.KV, BlockPart.WINDOW)[: 2 if windows else 1]
    }
    for whole in range(longest, usable, -1):
        if states and not has(names[whole - 1], BlockPart.STATE):
            continue
        outside = blocks.num_out_of_window(whole * blocks.block)
        first = in_memory[min(outside, num_published)]  # to read
        if states:
            first = min(first, whole - 1)  # the last block is read again, with its state
        starts = {BlockPart.KV: first, BlockPart.WINDOW: max(first, outside)}
        if all(gaps[min(starts[part], whole)] >= whole for part, gaps in on_disk.items()):
            return whole
    return usable


def _gaps(is_there: Iterable[bool]) -> list[int]:
    """Return for each place the first one from there on that is missing; so for the end, too."""
    places = [*is_there]
    gaps = [len(places)]
    for place in reversed(range(len(places))):
        gaps.append(gaps[-1] if places[place] else place)
    return gaps[::-1]
