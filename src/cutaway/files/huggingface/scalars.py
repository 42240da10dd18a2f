"""Tensors of one number in each layer, which GGUF has as metadata: constants of activations."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quoted


def scalars(keys: Mapping[str, str], shards: Shards, layers: int) -> dict[str, NDArray[np.float32]]:
    """By GGUF's key: (layers,). keys: by the tensors' names, {} for the layer's number.

    `FormatError` for a tensor that is missing or is more than one number.
    """
    return {
        key: np.array([_number(shards, name.format(i)) for i in range(layers)], np.float32)
        for name, key in keys.items()
    }


def _number(shards: Shards, name: str) -> float:
    if name not in shards:
        raise FormatError(f"the tensor {quoted(name)} is missing; download the model again")
    numbers = shards.part(name)
    if numbers.size != 1:
        raise FormatError(f"the tensor {quoted(name)} has {numbers.size} numbers, not one")
    return float(numbers.reshape(-1)[0])
