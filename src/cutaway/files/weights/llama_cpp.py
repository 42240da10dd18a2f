"""A model in the form that llama.cpp reads, where that is not the form in which we keep it.

Knows for each architecture which numbers of our metadata llama.cpp's files have in their matrices,
which tensors have other names there or are one, and which keys it wants besides. Models are read in
both forms.

Source: llama.cpp's `conversion/`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.weights.cursor import quote
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_KEYS, _VALUES, _KEYS_VALUES = ".attn_k_b.weight", ".attn_v_b.weight", ".attn_kv_b.weight"
_LARGEST = 1e15  # of a factor: neither it nor its inverse leaves float32


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

    def new_values(self, metadata: Mapping[str, Any], prefix: str) -> dict[str, str | int]:
        """Return the value of each key that our files have otherwise or lack, or the key with it.

        The keys have the prefix; none is left out of the metadata.
        """
        values = dict(self.values)
        experts = metadata.get(f"{prefix}expert_count", 0)
        if type(experts) is not int:
            raise FormatError(f"{prefix}expert_count must be a whole number, not {experts!r:.40}")
        if not experts:
            values |= {k: v for k, v in self.dense_values.items() if prefix + k not in metadata}
        new = {
            prefix + key: prefix + value if isinstance(value, str) else value
            for key, value in values.items()
        }
        return {k: v for k, v in new.items() if isinstance(v, int) or v in metadata}


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
        for name, sources in self._sources.items():
            sources.sort()  # keys before values, whatever their order in the file
            _check_sources(file, name, sources)
        self.tensors = MappingProxyType({name: self._entry(name) for name in self._sources})
        metadata = {key: value for key, value in file.metadata.items() if key not in keys}
        new = form.new_values(metadata, prefix)
        copied = {key: value for key, value in new.items() if isinstance(value, str)}
        values = new | {key: metadata[source] for key, source in copied.items()}
        self.metadata: Mapping[str, Any] = MappingProxyType(metadata | values)
        origins = {key: key for key in metadata if key not in new} | copied
        self.value_types = {
            key: file.value_types[origin]
            for key, origin in origins.items() if origin in file.value_types
        }  # fmt: skip

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
            numbers = self._product(sources[0], factor)
        as_stored: TensorBytes = numbers.reshape(-1).view(np.uint8)
        return as_stored

    def _product(self, name: str, factor: float) -> NDArray[np.float32]:
        numbers = self._file.dequantize(name)
        try:
            with np.errstate(over="raise"):
                numbers *= np.float32(factor)
        except FloatingPointError as error:
            raise FormatError(
                f"{self.path}: the numbers of the tensor {quote(name)} times {factor:g} are too "
                "large for F32"
            ) from error
        return numbers

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self.info(name)
        for source in self._sources[name]:
            self._file.expect(source)

    def close(self) -> None:
        """See ``ModelFile``."""
        self._file.close()


def _check_sources(file: ModelFile, name: str, sources: Sequence[str]) -> None:
    """Raise FormatError unless a tensor is another, or is a layer's two that become one."""
    if len(sources) == 1 and (sources[0] == name or not name.endswith(_KEYS_VALUES)):
        return
    shapes = [file.info(source).shape for source in sources]
    tensors = " and ".join(f"{quote(n)} {s}" for n, s in zip(sources, shapes, strict=True))
    if not name.endswith(_KEYS_VALUES):
        raise FormatError(f"{file.path}: {tensors} are the same tensor of llama.cpp's, {name}")
    layer = name.removesuffix(_KEYS_VALUES)
    if sources == [layer + _KEYS, layer + _VALUES]:
        keys, values = shapes
        if len(keys) == len(values) == 3 and (keys[0], keys[1]) == (values[0], values[2]):
            return
    raise FormatError(
        f"{file.path}: {tensors} cannot become {name}, which needs {_KEYS[1:]} of the shape "
        f"(heads, rank, key length) and {_VALUES[1:]} of (heads, value length, rank)"
    )


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
    if type(value) not in (int, float) or not (value == 0 or 1 / _LARGEST <= value <= _LARGEST):
        raise FormatError(
            f"{file.path}: {key} must be a positive number of an ordinary size, not {value!r:.40}"
        )
    return float(value) or 1.0
