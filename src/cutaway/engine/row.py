"""The row of a text's last token, computed by itself, and all that can be read of it.

A sequence of ``PinPrefix`` has the KV blocks of the tokens before, and room for the row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.compute.backends import inspectable
from cutaway.engine.engine import Engine
from cutaway.engine.scheduled import Scheduled, batch_of, edits_of
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


def is_ready(sequence: EngineSequence) -> bool:
    """Whether all is stored that its last token attends to."""
    return bool(sequence.blocks) and sequence.num_pending == 1


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
        layer: inside.keys_values(layer, sequence.blocks, first, last + 1)
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

    All are computed again in one batch, over the keys and values that are there: the same bits.
    """
    inside = inspectable(engine.backends[sequence.request.adapter])
    total = len(sequence)
    one = Scheduled(sequence, 0, sequence.tokens(0, total), first_logit_row=total - 1, states=[])
    engine.settle_blocks()
    _, tensors = inside.tap(batch_of([one]), names, edits_of(one))
    return tensors
