"""Texts whose logits are all wanted, queued together."""

import numpy as np
from numpy.typing import NDArray

from cutaway.engine import Engine, Request, ScoreBidirectional, Scored


def read(engine: Engine, texts: list[list[int]]) -> tuple[list[NDArray[np.float32]], int]:
    """Return (logits of all rows of each text, number of steps)."""
    logits: dict[int, list[NDArray[np.float32]]] = {}
    for text in texts:
        decoder = ScoreBidirectional(tuple(range(len(text))))
        [sequence] = engine.add(Request(prompt_token_ids=tuple(text), decoder=decoder))
        logits[sequence.id] = []
    steps = 0
    while not engine.is_idle:
        steps += 1
        for event in engine.step():
            if isinstance(event, Scored) and event.logits is not None:
                assert event.position - 1 == sum(len(rows) for rows in logits[event.id])
                logits[event.id].append(event.logits)
    return [np.concatenate(rows) for rows in logits.values()], steps
