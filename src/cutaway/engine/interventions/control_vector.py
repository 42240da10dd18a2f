"""Control vectors in files, as interventions: a vector for each of some layers.

The format is that of repeng and llama.cpp: a GGUF file of the architecture "controlvector", whose
tensor ``direction.N`` is added to the stream after layer N.
"""

import re
from os import PathLike
from typing import Any

from cutaway.engine.interventions.intervention import Intervention, add
from cutaway.errors import InputError
from cutaway.files.weights import GGUFFile

_DIRECTION = re.compile(r"direction\.(0|[1-9][0-9]{0,4})", re.ASCII)


def control_vector(
    path: str | PathLike[str],
    strength: float = 1.0,
    *,
    positions: Any = None,
    from_step: int | None = None,
) -> tuple[Intervention, ...]:
    """Add ``strength`` times each of a file's vectors; in the order of the layers.

    InputError where the file is no control vector, FormatError where it is damaged.
    """
    file = GGUFFile(path)
    try:
        kind = file.metadata.get("general.architecture")
        found = {m[1]: name for name in file.tensors if (m := _DIRECTION.fullmatch(name))}
        if kind != "controlvector" or not found or len(found) < len(file.tensors):
            raise InputError(
                f"{file.path}: this is no control vector: its architecture is {kind!r:.40}, and "
                "its tensors are not named direction.1, direction.2 and so on"
            )
        each = {int(layer): file.dequantize(name) for layer, name in found.items()}
    finally:
        file.close()
    return tuple(
        add(f"L{layer}", each[layer], strength, positions=positions, from_step=from_step)
        for layer in sorted(each)
    )
