"""The smaller vocabulary of a draft head: which of the model's tokens it can draft.

Publishers of EAGLE-3 heads and vLLM's speculators write it as ``d2t``: for each token of the head,
how much larger the model's id is; ``t2d`` says the same the other way round.
"""

import numpy as np
from numpy.typing import NDArray

from cutaway.files.huggingface.shards import Shards

_TO_TARGET = ("d2t", "model.d2t")
MAPS = (*_TO_TARGET, "t2d", "model.t2d")
"""The names of tensors that are no weights."""


def read_target_ids(shards: Shards) -> NDArray[np.int64] | None:
    """Return the model's id of each token of the head; None if it has the model's vocabulary."""
    offsets = next((shards.part(name) for name in _TO_TARGET if name in shards), None)
    return None if offsets is None else np.arange(offsets.size) + offsets.ravel().astype(np.int64)
