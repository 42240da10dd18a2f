"""What folders of draft heads have in common: each becomes one file whose names have a prefix.

A base of EAGLE-3 heads, block drafters and assistants, whose modules know how publishers name
tensors and settings.
"""

import os
from collections.abc import Container, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from cutaway.files.huggingface.config import CONFIG
from cutaway.files.huggingface.draft_vocabulary import read_target_ids
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards, SourcedFile, TensorSource, shard_paths

MOST_LAYERS = 1000
"""A tensor's name has up to three digits for its layer."""

_SIZES = {"hidden_size": "embedding_length", "num_attention_heads": "attention.head_count"}


class DraftFolder(SourcedFile):
    """config.json and safetensors files, as one file with tensors such as eagle.fc.weight.

    Raises InputError if a file cannot be opened, and FormatError, naming the file and the field, if
    something is missing, damaged or not supported.
    key_prefix, tensor_prefix: what the names of keys and of tensors begin with
    """

    key_prefix: ClassVar[str]
    tensor_prefix: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path)
        config = JsonObject.read(path / CONFIG)
        self._check_config(config)
        super().__init__(path, shard_paths(path))
        assert self._shards is not None
        sources = dict(self._sources(self._shards))
        self._check_tensors(sources)
        metadata, tensors = self._read_config(config)
        metadata["target_ids"] = read_target_ids(self._shards)
        for name, values in tensors.items():
            at = self.tensor_prefix + name
            sources[at] = TensorSource(at, "F32", values.shape, (), values=values)
        self.tensors = MappingProxyType(sources)
        self.metadata = MappingProxyType({self.key_prefix + k: v for k, v in metadata.items()})

    def _sources(self, shards: Shards) -> Iterator[tuple[str, TensorSource]]:
        for name in shards:
            if new := self._rename(name, shards):
                info, at = shards.info(name), self.tensor_prefix + new
                format = "F32" if len(info.shape) == 1 else info.format
                yield at, TensorSource(at, format, info.shape, (name,))

    def _check_config(self, config: JsonObject) -> None:
        """Raise FormatError if config.json is not of this kind."""
        raise NotImplementedError

    def _check_tensors(self, names: Container[str]) -> None:
        """Raise FormatError if a tensor is missing; names: with the prefix."""

    def _rename(self, name: str, shards: Shards) -> str | None:
        """Return a tensor's name without the prefix, None if nothing reads it; or FormatError."""
        raise NotImplementedError

    def _read_config(self, config: JsonObject) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metadata, without the prefix, and the tensors of the rope."""
        raise NotImplementedError


def llama_sizes(config: JsonObject) -> dict[str, Any]:
    """Return the sizes of a head whose layers are Llama's, by GGUF's keys without a prefix."""
    config.must_be("hidden_act", "silu")
    sizes = {new: config.size(key) for key, new in _SIZES.items()}
    heads = sizes["attention.head_count"]
    kv_heads = config.get("num_key_value_heads") and config.size("num_key_value_heads")
    width = config.get("head_dim") and config.size("head_dim")
    eps = config.with_defaults({}, {"rms_norm_eps": 1e-6}).positive("rms_norm_eps")
    return sizes | {
        "attention.head_count_kv": kv_heads or heads,
        "attention.key_length": width or sizes["embedding_length"] // heads,
        "attention.layer_norm_rms_epsilon": eps,
    }
