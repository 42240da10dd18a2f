"""One draw by the NumPy twin, even if the native sampler is built."""

import numpy as np

from cutaway.sampling import (
    CompiledChain,
    History,
    Observe,
    RowDraw,
    Sampled,
    SamplingParams,
    build_chain,
    sample,
)
from cutaway.sampling.native import TWIN


def draw(
    params: SamplingParams,
    logits: np.ndarray,
    history: History,
    *,
    seed: int,
    position: int,
    observe: Observe | None = None,
) -> Sampled:
    """Return the draw of one row, (vocab,); raise the row's error."""
    chain = CompiledChain(build_chain(params), params, history.prompt_token_ids)
    (result,) = sample(logits[None], [RowDraw(chain, history, seed, position, observe)], tier=TWIN)
    if isinstance(result, Exception):
        raise result
    return result
