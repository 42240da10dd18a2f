"""Reading a text without writing: what the model expected at each of its tokens.

Knows how a text of any length goes through the backend. Refuses to know sequences and sampling.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from cutaway.backends import Batch, Logits
from cutaway.checks import check_ids, check_int
from cutaway.engine.batch import lay_rows
from cutaway.errors import CutawayError, InputError

if TYPE_CHECKING:
    from cutaway.engine.engine import Engine


def score(engine: "Engine", token_ids: Iterable[int], start: int = 0) -> Logits:
    """Teacher-forced logits of the positions from ``start`` on, float32 (n - start, vocab).

    InputError where they do not fit the model, CutawayError where others hold the KV blocks.
    """
    token_ids = check_ids("token_ids", token_ids)
    longest = engine.limits.context_length
    if not 0 < len(token_ids) <= longest:
        raise InputError(f"token_ids must hold 1 to {longest} ids, not {len(token_ids)}")
    engine.limits.check_ids("token_ids", token_ids)
    start = check_int("start", start, 0, len(token_ids) - 1)
    wanted = engine.blocks_for(len(token_ids), "token_ids", "score fewer tokens")
    if wanted > engine.blocks.free:
        raise CutawayError(
            f"token_ids need {wanted} KV blocks and {engine.blocks.free} are free while others "
            "run: score them later"
        )
    blocks, most = engine.blocks.take(wanted), engine.scheduler.policy.max_rows
    try:
        out = np.empty((len(token_ids) - start, engine.limits.vocab_size), np.float32)
        for first in range(0, len(token_ids), most):
            tokens = token_ids[first : first + most]
            rows = lay_rows([(first, tokens, blocks)])
            told = np.arange(max(start - first, 0), len(tokens), dtype=np.int32)
            logits = engine.backend.run(Batch(*rows, told))
            done = first + len(tokens) - start
            out[max(done - len(told), 0) : max(done, 0)] = logits
        return out
    finally:
        engine.blocks.give_back(blocks)
