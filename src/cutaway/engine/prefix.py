"""Whole KV blocks of a text, out of an engine and into it, a few at a time between two steps.

Knows which blocks hold the text, and that nobody finds one before all of it is there. Nothing is
held from one call to the next, so a text that is given up halfway leaves nothing to be undone.
Refuses to know files, and what is in a block.
"""

from collections.abc import Callable, Sequence

from cutaway.backends import Bytes
from cutaway.engine.engine import Engine

OnBlock = Callable[[int, list[Bytes]], object]
"""Called with a block's place in the text and its memory."""


def read_blocks(
    engine: Engine, token_ids: Sequence[int], first: int, most: int, read: OnBlock
) -> int:
    """Show ``read`` the blocks of a text from one on, ``most`` of them; the first not shown.

    It is ``first`` itself where the prefix cache does not have that block, or the text ends.
    """
    held = engine.blocks.match(token_ids)
    try:
        last = max(first, min(first + most, len(held)))
        for place in range(first, last):
            read(place, engine.backend.block_memory(held[place]))
    finally:
        engine.blocks.release(held)
    return last


def fill_blocks(
    engine: Engine, token_ids: Sequence[int], sizes: Sequence[int], most: int, fill: OnBlock
) -> int:
    """Put the next blocks of a text into the prefix cache; how many of it are there then.

    ``fill`` writes all of a block's memory, or raises, and then that block and those after it are
    not put in. Blocks that are there already are not filled again; where no block is free the
    number does not grow.
    sizes: bytes of each block, fewer where layers that see a window do not store it
    """
    blocks, kv = engine.blocks, engine.backend.kv
    held = blocks.match(token_ids)
    known = filled = len(held)
    wanted = min(most, len(token_ids) // blocks.block - known, blocks.free)
    held += blocks.allocate(wanted)
    try:
        for filled, block_id in enumerate(held[known:], known):
            windows = sizes[filled] == kv.bytes_per_token * kv.block_tokens
            if not windows:
                engine.backend.copy_windows([(block_id, -1)])  # of a text that it held before
            fill(filled, engine.backend.block_memory(block_id, windows=windows))
        filled = known + wanted
    finally:  # what was filled before an error is whole
        held = blocks.publish(held, token_ids[: filled * blocks.block], known)
        blocks.release(held)
    return filled
