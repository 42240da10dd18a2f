"""Finds the models in a person's folder, such as the cache of another program."""

import os
from pathlib import Path

from cutaway.files.hub.catalog import parts_of


def models_in(folder: Path) -> list[Path]:
    """Return the models in a folder at any depth: .gguf files, and folders of transformers.

    A model in several files is named by its first.
    """
    models = []
    for place, inner, names in os.walk(folder):
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            models.append(Path(place))
            inner.clear()  # its parts have a config.json each, too
            continue
        inner.sort()
        gguf = sorted(name for name in names if name.lower().endswith(".gguf"))
        models += [Path(place, name) for name in gguf if parts_of(name)[0] == name]
    return models
