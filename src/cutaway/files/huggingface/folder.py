"""A folder of transformers with the face of a model's file.

Knows which files of a folder are the model.
"""

import os
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import InputError
from cutaway.files.huggingface import sentences
from cutaway.files.huggingface.config import CONFIG, Config
from cutaway.files.huggingface.modulation import folded
from cutaway.files.huggingface.sentences import sentence_metadata
from cutaway.files.huggingface.shards import INDEX, Shards, shard_paths
from cutaway.files.huggingface.tensors import tensor_sources
from cutaway.files.huggingface.tokens import tokenizer_files, tokenizer_metadata
from cutaway.files.weights import ModelFile


def parts(folder: Path) -> list[Path]:
    """The files of a folder that say what the model computes, by name."""
    small = [path for path in (folder / CONFIG, folder / INDEX) if path.is_file()]
    text = tokenizer_files(folder)
    return sorted([*small, *text, *sentences.files(folder), *shard_paths(folder)])


class HuggingFaceFolder(ModelFile):
    """config.json, safetensors files and tokenizer.json, with GGUF's keys and names.

    Tensors are rewritten when they are asked for; matrices keep their format, vectors become F32.
    Raises `InputError` if a file cannot be opened and `FormatError`, with the name of the file and
    of the field, for what is missing, damaged or not supported.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        Config(self.path)  # what is wrong with it is to be said before what is wrong with tensors
        shards = Shards(self.path)
        config = Config(self.path, shards)
        sources = tensor_sources(config, shards)
        self._sources = folded(sources, shards) if config.family.modulated else sources
        rows = self._sources["token_embd.weight"].shape[0]
        self.metadata = MappingProxyType(
            config.metadata
            | tokenizer_metadata(self.path, config.settings, rows, sees_all=config.sees_all)
            | sentence_metadata(self.path, config.family.architecture)
            | self._token_types(config)
        )
        self.tensors = MappingProxyType(self._sources)
        self._shards: Shards | None = shards

    def _token_types(self, config: Config) -> dict[str, int]:
        """What llama.cpp asks of BERT's kind, which names the types of tokens by number."""
        types = self._sources.get("token_types.weight")
        rows = types.shape[0] if types else 1
        is_bert = config.family.architecture == "bert"
        return {"tokenizer.ggml.token_type_count": rows} if is_bert else {}

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See `ModelFile`; a view where nothing is rewritten, else a new array."""
        self.info(name)
        if self._shards is None:
            raise InputError(f"{self.path}: the folder is closed, so {name} cannot be read")
        return self._sources[name].make(self._shards)

    def release(self, name: str) -> None:
        """See `ModelFile`."""
        self.info(name)
        if self._shards is not None:
            for source in self._sources[name].sources:
                self._shards.release(source)

    def close(self) -> None:
        """See `ModelFile`."""
        if self._shards is not None:
            self._shards.close()
        self._shards = None
