"""Pinned texts, read between two steps: the row of a text's last token, and its KV blocks.

The last token's row is computed by itself, and read in full. A sequence of ``PinPrefix`` has the KV
blocks of the tokens before the last one, and room for its row. Where the rows of a text attend to
each other (``PinWhole``), all of them are computed again together.

Whole KV blocks of a text are copied out of an engine or into one, a few at a time. Where layers
have a recurrent state, the last block includes the state at the text's end. A block is published
once all of it is there. Nothing is kept between calls, so a text that is abandoned halfway needs no
clean-up.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Bytes, inspectable
from cutaway.engine.decoders.prefill import PinWhole
from cutaway.engine.loop.engine import Engine
from cutaway.engine.memory.block_manager import Salt
from cutaway.engine.memory.store import BlockPart
from cutaway.engine.scheduled import (
    Scheduled,
    batch_of,
    change_states,
    edits_of,
    rows_to_state_change,
)
from cutaway.engine.sequence import Sequence as EngineSequence

Floats = NDArray[np.float32]


class Row(NamedTuple):
    """The results of one token's row, copied.

    logits        float32 (vocab,)
    tensors       by name in the graph: (width,)
    keys, values  by layer, as stored: (kv_heads, n, head_dim) of the last n positions
    """

    logits: Floats
    tensors: Mapping[str, Floats]
    keys: Mapping[int, NDArray[Any]]
    values: Mapping[int, NDArray[Any]]


class WholeText(NamedTuple):
    """All rows of a text that is read in one step.

    batch         the batch that was run
    tensors       by name in the graph: (tokens, width)
    keys, values  by layer, as stored: (kv_heads, tokens, head_dim)
    """

    batch: Batch
    tensors: Mapping[str, Floats]
    keys: Mapping[int, NDArray[Any]]
    values: Mapping[int, NDArray[Any]]


def is_ready(sequence: EngineSequence) -> bool:
    """Whether all keys and values to which the sequence's last token attends are stored."""
    return bool(sequence.memory.blocks) and sequence.num_pending == 1


def read_row(
    engine: Engine, sequence: EngineSequence, names: Sequence[str], firsts: Mapping[int, int]
) -> Row:
    """Compute the last token of a sequence that is ready, between two steps.

    names   tensors to read
    firsts  by layer, the first position whose keys and values are read
    """
    inside, last = inspectable(engine.backends[sequence.request.adapter]), len(sequence) - 1
    tokens = sequence.tokens(last, last + 1)
    entry = Scheduled(sequence, last, tokens, first_logit_row=0, states=[])  # it may be read again
    engine.settle_blocks()
    logits, tensors = inside.tap(batch_of([entry]), names, edits_of(entry))
    stored = {
        layer: inside.keys_values(layer, sequence.memory.blocks, first, last + 1)
        for layer, first in firsts.items()
    }
    return Row(
        logits[0].copy(),
        {name: tensor[0] for name, tensor in tensors.items()},
        {layer: keys for layer, (keys, _) in stored.items()},
        {layer: values for layer, (_, values) in stored.items()},
    )


def read_text(
    engine: Engine, sequence: EngineSequence, names: Sequence[str]
) -> Mapping[str, Floats]:
    """Return tensors, (tokens, width), of all rows of a ready sequence, between two steps.

    All rows are computed again and overwrite their keys and values with the same bits. Where an
    intervention changes the state, one batch ends and the next begins.
    """
    backend, parts = engine.backends[sequence.request.adapter], list[Mapping[str, Floats]]()
    engine.settle_blocks()
    with ExitStack() as borrowed:
        start, total = 0, len(sequence)
        while start < total:
            end = min(start + rows_to_state_change(sequence, start), total)
            rows, slot = end - start, sequence.memory.blocks[(end - 1) // KV_BLOCK]
            states = [] if end == total else [(rows - 1, slot)]
            tokens, limits = sequence.tokens(start, end), _limits(sequence, start, end)
            entry = Scheduled(sequence, start, tokens, rows - 1, limits=limits, states=states)
            if states:
                borrowed.callback(_put_back, backend, slot, _copy(backend.read_state(slot)))
            parts.append(inspectable(backend).tap(batch_of([entry]), names, edits_of(entry))[1])
            change_states(backend, [entry])
            start = end
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _limits(sequence: EngineSequence, start: int, end: int) -> list[int] | None:
    """Return the last position that each of the rows attends to; None: its own."""
    last = sequence.num_bidirectional - 1
    return [max(position, last) for position in range(start, end)] if start <= last else None


def read_whole(
    engine: Engine, sequence: EngineSequence, names: Sequence[str], layers: Sequence[int]
) -> WholeText:
    """Return all rows of a sequence of ``PinWhole`` that is ready, between two steps.

    names   tensors to read
    layers  layers whose keys and values are read
    """
    inside, decoder = inspectable(engine.backends[sequence.request.adapter]), sequence.decoder
    assert isinstance(decoder, PinWhole)
    engine.settle_blocks()
    batch = batch_of([decoder.whole(sequence)])
    _, tensors = inside.tap(batch, names)
    stored = {at: inside.keys_values(at, sequence.memory.blocks, 0, len(sequence)) for at in layers}
    keys, values = ({at: pair[i].copy() for at, pair in stored.items()} for i in (0, 1))
    return WholeText(batch, tensors, keys, values)


def read_state(engine: Engine, sequence: EngineSequence) -> Floats:
    """All layers' recurrent states as they are before the last token of a ready sequence."""
    engine.settle_blocks()
    slot = sequence.memory.read_states[sequence.num_computed_tokens]
    memory = _copy(engine.backends[sequence.request.adapter].read_state(slot))
    return np.empty(0, np.float32) if memory is None else memory.view(np.float32)


def _copy(memory: Bytes | None) -> Bytes | None:
    return None if memory is None else memory.copy()


def _put_back(backend: Backend, slot: int, before: Bytes | None) -> None:
    """Restore the content that a slot had before a text was read through it."""
    if before is None:
        backend.copy_states([(slot, -1)])
    else:
        backend.write_state(slot, before)


# -- whole KV blocks -------------------------------------------------------------------------------

OnBlock = Callable[[int, list[Bytes]], object]
"""It is called with a block's index in the text, and with the block's bytes in pieces."""


def read_blocks(
    engine: Engine, token_ids: Sequence[int], first: int, max_blocks: int, read: OnBlock,
    *, salt: Salt | None = None,
) -> int:  # fmt: skip
    """Call ``read`` with up to ``max_blocks`` blocks of a text; return the index after the last.

    first: the index of the first block; it is returned where the prefix cache lacks that block
    salt: see ``Request``
    """
    blocks = engine.blocks
    block_ids = blocks.match(token_ids, salt)
    engine.settle_blocks()
    try:
        last = max(first, min(first + max_blocks, len(block_ids)))
        for place in range(first, last):
            pieces = engine.backend.read_block(block_ids[place])
            if place == len(token_ids) // blocks.block - 1 and blocks.states:
                state = engine.backend.read_state(block_ids[place])
                pieces += [] if state is None else [state]
            read(place, pieces)
    finally:
        blocks.release(block_ids, blocks.num_out_of_window(len(block_ids) * blocks.block))
    return last


def fill_blocks(
    engine: Engine, token_ids: Sequence[int], sizes: Sequence[int], max_blocks: int, fill: OnBlock,
    *, salt: Salt | None = None,
) -> int:  # fmt: skip
    """Put at most ``max_blocks`` of a text's missing blocks into the prefix cache.

    Return how many of the text's blocks the cache then has. ``fill`` writes all of a block's bytes;
    if it raises, that block and all later ones are left out.

    sizes: bytes of each block, fewer where layers with sliding windows do not store it
    salt: see ``Request``
    """
    blocks, whole = engine.blocks, len(token_ids) // engine.blocks.block
    full = engine.backend.kv.bytes_per_token * blocks.block
    lacking = (place for place in range(whole, 0, -1) if sizes[place - 1] < full)
    outside = next(lacking, 0)  # blocks after these have their windows stored
    block_ids = blocks.match_stored(token_ids, outside, salt)
    if blocks.states and len(block_ids) == whole and blocks.states.usable(block_ids) < whole:
        blocks.release([block_ids.pop()])  # this block is filled again, with its state
    num_cached = num_filled = len(block_ids)
    num_new = min(max_blocks, whole - num_cached, blocks.free)
    block_ids += blocks.allocate(num_new)
    engine.settle_blocks()
    try:
        for num_filled, block_id in enumerate(block_ids[num_cached:], num_cached):
            # As large as the backend has it: ``fill`` refuses a file whose blocks are not.
            nbytes = full if sizes[num_filled] >= full else full - _window_bytes(engine)
            block = np.empty(nbytes, np.uint8)
            has_state = num_filled == whole - 1 and bool(blocks.states)
            state = [np.empty(_state_bytes(engine), np.uint8)] if has_state else []
            fill(num_filled, [block, *state])
            engine.backend.write_block(block_id, [block])
            engine.speculator.forget_block(block_id)
            if blocks.states and has_state:
                blocks.states.store(block_id)
                engine.backend.write_state(block_id, state[0])
                blocks.states.complete(block_id)
        num_filled = num_cached + num_new
    finally:  # blocks that were filled before an error are complete
        block_ids = blocks.publish(
            block_ids, token_ids[: num_filled * blocks.block], num_cached, salt
        )
        blocks.free_windows(block_ids[num_cached:outside])
        blocks.release(block_ids, outside)
        engine.settle_blocks()
    return num_filled


def copy_parts(
    engine: Engine, block_id: int, parts: Collection[BlockPart]
) -> dict[BlockPart, Bytes]:
    """Copy parts of a published block, which must have them."""
    engine.settle_blocks()
    whole = np.concatenate([np.empty(0, np.uint8), *engine.backend.read_block(block_id)])
    split = part_bytes(engine)[BlockPart.KV]
    copies = {BlockPart.KV: whole[:split], BlockPart.WINDOW: whole[split:]}
    if BlockPart.STATE in parts:
        state = engine.backend.read_state(block_id)
        assert state is not None
        copies[BlockPart.STATE] = state.copy()
    return {part: copies[part] for part in parts}


def part_bytes(engine: Engine) -> dict[BlockPart, int]:
    """Return the bytes of each part of a block."""
    window = _window_bytes(engine)
    kv = engine.backend.kv.bytes_per_token * engine.blocks.block - window
    return {BlockPart.KV: kv, BlockPart.WINDOW: window, BlockPart.STATE: _state_bytes(engine)}


def _window_bytes(engine: Engine) -> int:
    """Return the bytes of a block in the layers with a window."""
    groups = engine.backend.kv.groups
    return engine.blocks.block * sum(group.bytes_per_token for group in groups if group.window)


def _state_bytes(engine: Engine) -> int:
    layout = engine.backend.kv.state
    return 0 if layout is None else layout.nbytes
