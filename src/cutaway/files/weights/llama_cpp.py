"""A model in the form that llama.cpp reads, where that is not the form in which we keep it.

Knows for each architecture which numbers of our metadata llama.cpp's files have in their matrices,
which tensors have other names there or are one, and which keys it wants besides. Models are read in
both forms.

Source: llama.cpp's `conversion/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_KEYS, _VALUES, _KEYS_VALUES = ".attn_k_b.weight", ".attn_v_b.weight", ".attn_kv_b.weight"


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How llama.cpp's files of an architecture differ from ours.

    multiplies_embedding, divides_logits  keys of numbers that llama.cpp has in the two matrices
    renamed  the ending of a tensor's name in our files -> the ending in llama.cpp's; heads'
             matrices for keys and for values that get the same name become one
    values   a key -> the value that llama.cpp wants there, or the key that has it; dense_values: in
             models without experts, if the file lacks the key
    """

    multiplies_embedding: str = ""
    divides_logits: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str | int] = field(default_factory=dict)
    dense_values: Mapping[str, str | int] = field(default_factory=dict)

    def new_name(self, name: str) -> str:
        """Return llama.cpp's name of a tensor."""
        ending = next(filter(name.endswith, self.renamed), "")
        return name.removesuffix(ending) + self.renamed.get(ending, "")

    def new_values(self, metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        """Return the values of keys that are otherwise in our files, or absent."""
        keys = dict(self.values)
        if not metadata.get(f"{prefix}expert_count"):
            keys |= {k: v for k, v in self.dense_values.items() if prefix + k not in metadata}
        values = {
            key: metadata.get(f"{prefix}{value}") if isinstance(value, str) else value
            for key, value in keys.items()
        }
        return {f"{prefix}{key}": value for key, value in values.items() if value is not None}


_NEMOTRON_H = _Form(values={"attention.layer_norm_epsilon": "attention.layer_norm_rms_epsilon"})
_FORMS: Mapping[str, _Form] = {
    "deepseek2": _Form(
        dense_values={
            "expert_feed_forward_length": "feed_forward_length", "expert_shared_count": 0,
            "leading_dense_block_count": "block_count",
        }
    ),
    "falcon-h1": _Form(
        multiplies_embedding="embedding_scale", divides_logits="logit_scale",
        renamed={".ffn_norm.weight": ".ffn_norm"},
    ),
    "minicpm3": _Form(
        renamed={_KEYS: _KEYS_VALUES, _VALUES: _KEYS_VALUES},
        values={
            "attention.head_count_kv": "attention.head_count",
            "attention.key_length": "attention.key_length_mla",
            "attention.value_length": "attention.value_length_mla",
        },
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
}  # fmt: skip


def convert_for_llama_cpp(file: ModelFile) -> ModelFile:
    """Return the model as llama.cpp reads it: the file itself where the two forms are the same."""
    form = _FORMS.get(file.metadata.get("general.architecture", ""))
    return file if form is None else LlamaCppFile(file, form)


class LlamaCppFile(ModelFile):
    """Another file's model in llama.cpp's form; closing this file closes the other.

    A matrix that is multiplied or joined becomes F32. If embedding and output are one matrix with
    two factors, they become two.
    """

    def __init__(self, file: ModelFile, form: _Form) -> None:
        self.path, self._file = file.path, file
        prefix = f"{file.metadata['general.architecture']}."
        keys = [f"{prefix}{key}" for key in (form.multiplies_embedding, form.divides_logits)]
        embedding, divisor = (_positive(file, key) for key in keys)
        self._factors = {_EMBEDDING: embedding, _OUTPUT: 1 / divisor}
        self._sources = dict[str, list[str]]()
        for name in file.tensors:
            self._sources.setdefault(form.new_name(name), []).append(name)
        if embedding != 1 / divisor:
            self._sources.setdefault(_OUTPUT, [_EMBEDDING])
        self.tensors = MappingProxyType({name: self._entry(name) for name in self._sources})
        metadata = {key: value for key, value in file.metadata.items() if key not in keys}
        new = form.new_values(metadata, prefix)
        self.metadata: Mapping[str, Any] = MappingProxyType(metadata | new)
        self.value_types = {
            key: type_id for key, type_id in file.value_types.items() if key in metadata
        }

    def _entry(self, name: str) -> TensorInfo:
        first, *further = map(self._file.info, self._sources[name])
        if further:
            return TensorInfo(name, "F32", _joined_shape(first, further[0]))
        return TensorInfo(name, "F32" if self._factor(name) != 1 else first.format, first.shape)

    def _factor(self, name: str) -> float:
        return self._factors.get(name, 1.0)

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``; a matrix that is multiplied or joined is read, and its bytes new."""
        self.info(name)
        sources, factor = self._sources[name], self._factor(name)
        if len(sources) == 1 and factor == 1:
            return self._file.raw(sources[0])
        if len(sources) > 1:
            numbers = _join(*map(self._file.dequantize, sources))
        else:
            numbers = self._file.dequantize(sources[0]) * np.float32(factor)
        as_stored: TensorBytes = numbers.reshape(-1).view(np.uint8)
        return as_stored

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self.info(name)
        for source in self._sources[name]:
            self._file.expect(source)

    def close(self) -> None:
        """See ``ModelFile``."""
        self._file.close()


def _joined_shape(keys: TensorInfo, values: TensorInfo) -> tuple[int, int]:
    """Return the shape of all heads' matrices for keys and values in one."""
    heads, rank, size = keys.shape
    return heads * (size + values.shape[1]), rank


def _join(keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return all heads' matrices for keys, which are turned, and for values, head by head."""
    heads = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
    return np.ascontiguousarray(heads.reshape(-1, heads.shape[-1]))


def _positive(file: ModelFile, key: str) -> float:
    """Return a number of the metadata; 1 if the file lacks it, or has 0, which means none."""
    value = file.metadata.get(key, 0)
    if type(value) not in (int, float) or value < 0 or not isfinite(value):
        raise FormatError(f"{file.path}: {key} must be a finite number above 0, not {value!r:.40}")
    return float(value) or 1.0
