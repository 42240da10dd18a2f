"""Whole KV blocks of a text, out of an engine and into it, a few at a time between two steps.

Where layers have a recurrent state, that at the text's end comes with its last block.
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
    engine.settle_blocks()
    try:
        last = max(first, min(first + most, len(held)))
        for place in range(first, last):
            pieces = engine.backend.block_memory(held[place])
            if place == len(token_ids) // blocks.block - 1:
                pieces += _state(engine, held[place], new=False)
            read(place, pieces)
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
    if blocks.states and len(held) == whole and blocks.states.usable(held) < whole:
        blocks.release([held.pop()])  # it is filled again, with its state
    known = filled = len(held)
    wanted = min(most, whole - known, blocks.free)
    held += blocks.allocate(wanted)
    engine.settle_blocks()
    try:
        for filled, block_id in enumerate(held[known:], known):
            windows = sizes[filled] >= full
            pieces = engine.backend.block_memory(block_id, windows=windows)
            fill(filled, pieces + (_new_state(engine, block_id) if filled == whole - 1 else []))
            if filled == whole - 1 and blocks.states:
                blocks.states.complete(block_id)
        filled = known + wanted
    finally:  # what was filled before an error is whole
        held = blocks.publish(held, token_ids[: filled * blocks.block], known, salt)
        blocks.free_windows(held[known:outside])
        blocks.release(held, outside)
        engine.settle_blocks()
    return filled


def _state(engine: Engine, block_id: int, *, new: bool) -> list[Bytes]:
    """The memory of a block's state, where layers have one."""
    memory = engine.backend.state_memory(block_id, new=new) if engine.blocks.states else None
    return [] if memory is None else [memory]


def _new_state(engine: Engine, block_id: int) -> list[Bytes]:
    if engine.blocks.states:
        engine.blocks.states.store(block_id)
    return _state(engine, block_id, new=True)
