"""A folder as Hugging Face's transformers writes it, read as if it were a GGUF file.

Knows which files of a folder are the model: config.json, safetensors files, tokenizer.json. The
modules here know how llama.cpp's conversion names and stores their keys and tensors.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType

from cutaway.files.huggingface import sentences
from cutaway.files.huggingface.config import CONFIG, Config
from cutaway.files.huggingface.families.family import as_layer
from cutaway.files.huggingface.quantization import OLD_CONFIGS, QuantisedShards
from cutaway.files.huggingface.sentences import (
    ARTIFACT,
    dense_tensors,
    late_metadata,
    sentence_metadata,
)
from cutaway.files.huggingface.shards import (
    INDEX,
    UNREAD,
    SourcedFile,
    TensorSource,
    shard_paths,
    unread,
)
from cutaway.files.huggingface.tensors import tensor_sources
from cutaway.files.huggingface.tokenizer import (
    sampling_metadata,
    tokenizer_files,
    tokenizer_metadata,
)


def parts(folder: Path) -> list[Path]:
    """Return the files of a folder that determine what the model computes, by name."""
    names = (CONFIG, INDEX, ARTIFACT, *OLD_CONFIGS)
    small = [folder / name for name in names if (folder / name).is_file()]
    text = tokenizer_files(folder)
    return sorted([*small, *text, *sentences.files(folder), *shard_paths(folder)])


class HuggingFaceFolder(SourcedFile):
    """config.json, safetensors files and tokenizer.json, with GGUF's keys and names.

    Tensors are rewritten when they are read; matrices keep their format, vectors become F32.
    Raises `InputError` if a file cannot be opened, and `FormatError`, naming the file and field, if
    something is missing, damaged or not supported.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path)
        Config(path)  # its errors come before those of tensors
        super().__init__(path, shard_paths(path))
        shards = self._shards
        assert shards is not None
        config = Config(path, shards)
        if config.quantization is not None:
            self._shards = shards = QuantisedShards(shards, config.quantization)
        sources = tensor_sources(config, shards)
        more = config.family.rebuild(sources, config.settings, shards)
        for name, values in dense_tensors(path).items():
            sources[name] = TensorSource(name, "F32", values.shape, (), values=values)
        self.tensors = MappingProxyType(sources)
        rows = sources["token_embd.weight"].shape[0]
        text = tokenizer_metadata(self.path, config.settings, rows, sees_all=config.sees_all)
        self.metadata = MappingProxyType(
            config.metadata
            | text
            | sentence_metadata(
                self.path, config.family.architecture, is_rank=config.family.is_rank
            )
            | late_metadata(self.path, config.settings, text)
            | sampling_metadata(self.path)
            | self._token_types(config)
            | self._body(config)
            | more
            | {UNREAD: self._unread(config, shards)}
        )

    def _unread(self, config: Config, names: Iterable[str]) -> list[str]:
        if config.draft_layers:
            names = (as_layer(name, config.layers) for name in names)
        return unread(names, config.behind)

    def _body(self, config: Config) -> dict[str, bool]:
        """Mark an embedding model: it lacks the output matrix of its family's decoders."""
        is_headless = config.is_body and not config.tied and "output.weight" not in self.tensors
        return {"cutaway.embedding.body": True} if is_headless and not config.sees_all else {}

    def _token_types(self, config: Config) -> dict[str, int]:
        """Return the number of token types, which llama.cpp requires of BERT."""
        types = self.tensors.get("token_types.weight")
        rows = types.shape[0] if types else 1
        is_bert = config.family.architecture == "bert"
        return {"tokenizer.ggml.token_type_count": rows} if is_bert else {}


__all__ = ["HuggingFaceFolder", "parts"]
