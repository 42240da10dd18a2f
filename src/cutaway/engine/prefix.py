"""Whole KV blocks of a text, out of an engine and into it, a few at a time between two steps.

A block is published once all of it is there. No state is kept between calls, so a text that is
given up halfway needs no clean-up.
"""

from collections.abc import Callable, Sequence

from cutaway.compute.backends import Bytes
from cutaway.engine.block_manager import Salt
from cutaway.engine.engine import Engine

OnBlock = Callable[[int, list[Bytes]], object]
"""Called with a block's place in the text and its memory."""


def read_blocks(
    engine: Engine, token_ids: Sequence[int], first: int, most: int, read: OnBlock,
    *, salt: Salt | None = None,
) -> int:  # fmt: skip
    """Call ``read`` with the next blocks of a text, ``most`` at most; the place after the last.

    first: the place of the first; it is returned where the prefix cache does not have that block
    salt: see ``Request``
    """
    blocks = engine.blocks
    held = blocks.match(token_ids, salt)
    engine.move_windows()
    try:
        last = max(first, min(first + most, len(held)))
        for place in range(first, last):
            read(place, engine.backend.block_memory(held[place]))
    finally:
        blocks.release(held, blocks.num_out_of_window(len(held) * blocks.block))
    return last


def fill_blocks(
    engine: Engine, token_ids: Sequence[int], sizes: Sequence[int], most: int, fill: OnBlock,
    *, salt: Salt | None = None,
) -> int:  # fmt: skip
    """Put the next blocks of a text into the prefix cache; how many of its blocks are there then.

    ``fill`` writes all of a block's memory; if it raises, that block and those after it are not put
    in. Blocks that are there already are not filled again; without a free block the number stays.
    sizes: bytes of each block, fewer where layers with sliding windows do not store it
    salt: see ``Request``
    """
    blocks, whole = engine.blocks, len(token_ids) // engine.blocks.block
    full = engine.backend.kv.bytes_per_token * blocks.block
    lacking = (place for place in range(whole, 0, -1) if sizes[place - 1] < full)
    outside = next(lacking, 0)  # after these the windows are stored
    held = blocks.match_stored(token_ids, outside, salt)
    known = filled = len(held)
    wanted = min(most, whole - known, blocks.free)
    held += blocks.allocate(wanted)
    engine.move_windows()
    try:
        for filled, block_id in enumerate(held[known:], known):
            windows = sizes[filled] == full
            fill(filled, engine.backend.block_memory(block_id, windows=windows))
        filled = known + wanted
    finally:  # what was filled before an error is whole
        held = blocks.publish(held, token_ids[: filled * blocks.block], known, salt)
        blocks.free_windows(held[known:outside])
        blocks.release(held, outside)
        engine.move_windows()
    return filled
