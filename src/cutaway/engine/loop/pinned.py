"""Pinned texts, between two steps: the row of a text's last token, and its KV blocks.

A row is computed by itself, and all that can be read of it is. A sequence of ``PinPrefix`` has the
KV blocks of the tokens before, and room for the row. Of a text whose rows attend to each other,
pinned by ``PinWhole``, all rows are computed again together.

Whole KV blocks of a text come out of an engine and go into one, a few at a time. Where layers have
a recurrent state, that at the text's end comes with its last block. A block is published once all
of it is there. No state is kept between calls, so a text given up halfway needs no clean-up.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Bytes, inspectable
from cutaway.engine.decoders.prefill import PinWhole
from cutaway.engine.loop.engine import Engine
from cutaway.engine.memory.block_manager import Salt
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

    batch         as it was run
    tensors       by name in the graph: (tokens, width)
    keys, values  by layer, as stored: (kv_heads, tokens, head_dim)
    """

    batch: Batch
    tensors: Mapping[str, Floats]
    keys: Mapping[int, NDArray[Any]]
    values: Mapping[int, NDArray[Any]]


def is_ready(sequence: EngineSequence) -> bool:
    """Whether all is stored that its last token attends to."""
    return bool(sequence.memory.blocks) and sequence.num_pending == 1


def read_row(
    engine: Engine, sequence: EngineSequence, names: Sequence[str], firsts: Mapping[int, int]
) -> Row:
    """Compute the last token of a sequence that is ready, between two steps.

    names: of tensors; firsts: the first position of which each layer's keys and values are wanted
    """
    inside, last = inspectable(engine.backends[sequence.request.adapter]), len(sequence) - 1
    tokens = sequence.tokens(last, last + 1)
    one = Scheduled(sequence, last, tokens, first_logit_row=0, states=[])  # it may be read again
    engine.settle_blocks()
    logits, tensors = inside.tap(batch_of([one]), names, edits_of(one))
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
    """Tensors of all rows of a sequence that is ready, (tokens, width), between two steps.

    All are computed again, over the keys and values that are there: the same bits. One batch ends
    where an intervention changes the state; the next goes on from there.
    """
    backend, parts = engine.backends[sequence.request.adapter], list[Mapping[str, Floats]]()
    engine.settle_blocks()
    with ExitStack() as borrowed:
        start, total = 0, len(sequence)
        while start < total:
            end = min(start + rows_to_state_change(sequence, start), total)
            rows, slot = end - start, sequence.memory.blocks[(end - 1) // KV_BLOCK]
            states = [] if end == total else [(rows - 1, slot)]
            one = Scheduled(sequence, start, sequence.tokens(start, end), rows - 1, states=states)
            if states:
                borrowed.callback(_put_back, backend, slot, _copied(backend.state_memory(slot)))
            parts.append(inspectable(backend).tap(batch_of([one]), names, edits_of(one))[1])
            change_states(backend, [one])
            start = end
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def read_whole(
    engine: Engine, sequence: EngineSequence, names: Sequence[str], layers: Sequence[int]
) -> WholeText:
    """All rows of a sequence of ``PinWhole`` that is ready, between two steps.

    names: of tensors; layers: whose keys and values are wanted
    """
    inside, decoder = inspectable(engine.backends[sequence.request.adapter]), sequence.decoder
    assert isinstance(decoder, PinWhole)
    engine.settle_blocks()
    batch = batch_of([decoder.whole(sequence)])
    _, tensors = inside.tap(batch, names)
    stored = {at: inside.keys_values(at, sequence.memory.blocks, 0, len(sequence)) for at in layers}
    keys, values = ({at: one[i].copy() for at, one in stored.items()} for i in (0, 1))
    return WholeText(batch, tensors, keys, values)


def read_state(engine: Engine, sequence: EngineSequence) -> Floats:
    """The recurrent state before the last token of a sequence that is ready, of all layers."""
    engine.settle_blocks()
    slot = sequence.memory.read_states[sequence.num_computed_tokens]
    memory = _copied(engine.backends[sequence.request.adapter].state_memory(slot))
    return np.empty(0, np.float32) if memory is None else memory.view(np.float32)


def _copied(memory: Bytes | None) -> Bytes | None:
    return None if memory is None else memory.copy()


def _put_back(backend: Backend, slot: int, before: Bytes | None) -> None:
    """What a slot had before a text was read through it."""
    if before is None:
        backend.copy_states([(slot, -1)])
    elif (memory := backend.state_memory(slot)) is not None:
        memory[:] = before


# -- whole KV blocks -------------------------------------------------------------------------------

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
