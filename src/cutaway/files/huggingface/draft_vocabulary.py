"""The smaller vocabulary of a draft head: which of the model's tokens it can draft.

Publishers of EAGLE-3 heads and vLLM's speculators write it as ``d2t``: for each token of the head,
how much larger the model's id is; ``t2d`` says the same the other way round.
"""

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

_TO_TARGET = ("d2t", "model.d2t")
MAPS = (*_TO_TARGET, "t2d", "model.t2d")
"""The names of tensors that are no weights."""
_DTYPES = ("I64", "I32")


def read_target_ids(shards: Shards) -> NDArray[np.int64] | None:
    """Return the model's id of each token of the head; None if it has the model's vocabulary."""
    name = next((name for name in _TO_TARGET if name in shards), None)
    if name is None:
        return None
    if (dtype := shards.dtype(name)) not in _DTYPES:
        raise FormatError(
            f"the tensor {quote(name)} is stored as {dtype}; it must be {' or '.join(_DTYPES)}"
        )
    offsets = shards.part(name).ravel()
    return np.arange(offsets.size) + offsets.astype(np.int64)
