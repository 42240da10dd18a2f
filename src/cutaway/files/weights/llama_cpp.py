"""A model in the form that llama.cpp reads, where that is not the form in which we keep it.

Knows for each architecture which numbers of our metadata llama.cpp's files have in their matrices,
and which tensors have other names there. Models are read in both forms.

Source: llama.cpp's `conversion/`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo

_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class _Form:
    """How llama.cpp's files of an architecture differ from ours.

    multiplies_embedding, divides_logits  keys of numbers that llama.cpp has in the two matrices
    renamed  the ending of a tensor's name in our files -> the ending in llama.cpp's
    """

    multiplies_embedding: str
    divides_logits: str
    renamed: Mapping[str, str]


_FORMS: Mapping[str, _Form] = {
    "falcon-h1": _Form("embedding_scale", "logit_scale", {".ffn_norm.weight": ".ffn_norm"}),
}


def convert_for_llama_cpp(file: ModelFile) -> ModelFile:
    """Return the model as llama.cpp reads it: the file itself where the two forms are the same."""
    form = _FORMS.get(file.metadata.get("general.architecture", ""))
    return file if form is None else LlamaCppFile(file, form)


class LlamaCppFile(ModelFile):
    """Another file's model in llama.cpp's form; closing this file closes the other.

    A matrix that is multiplied becomes F32. If embedding and output are one matrix with two
    factors, they become two.
    """

    def __init__(self, file: ModelFile, form: _Form) -> None:
        self.path, self._file = file.path, file
        prefix = file.metadata["general.architecture"]
        keys = [f"{prefix}.{key}" for key in (form.multiplies_embedding, form.divides_logits)]
        embedding, divisor = (_positive(file, key) for key in keys)
        self._factors = {_EMBEDDING: embedding, _OUTPUT: 1 / divisor}
        self._sources = dict(self._names(form))
        self.tensors = MappingProxyType({name: self._entry(name) for name in self._sources})
        self.metadata: Mapping[str, Any] = MappingProxyType(
            {key: value for key, value in file.metadata.items() if key not in keys}
        )
        self.value_types = {k: t for k, t in file.value_types.items() if k not in keys}

    def _names(self, form: _Form) -> Iterator[tuple[str, str]]:
        """Yield each tensor's name, and the name of its source."""
        parts = self._factors[_EMBEDDING] != self._factors[_OUTPUT]
        for name in self._file.tensors:
            ending = next(filter(name.endswith, form.renamed), "")
            yield name.removesuffix(ending) + form.renamed.get(ending, ""), name
            if name == _EMBEDDING and _OUTPUT not in self._file.tensors and parts:
                yield _OUTPUT, _EMBEDDING

    def _entry(self, name: str) -> TensorInfo:
        info = self._file.info(self._sources[name])
        return TensorInfo(name, "F32" if self._factor(name) != 1 else info.format, info.shape)

    def _factor(self, name: str) -> float:
        return self._factors.get(name, 1.0)

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``; a matrix that is multiplied is read, and its products are new."""
        self.info(name)
        if (factor := self._factor(name)) == 1:
            return self._file.raw(self._sources[name])
        numbers = self._file.dequantize(self._sources[name])
        numbers *= np.float32(factor)
        products: TensorBytes = numbers.reshape(-1).view(np.uint8)
        return products

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self.info(name)
        self._file.expect(self._sources[name])

    def close(self) -> None:
        """See ``ModelFile``."""
        self._file.close()


def _positive(file: ModelFile, key: str) -> float:
    """Return a number of the metadata; 1 if the file lacks it, or has 0, which means none."""
    value = file.metadata.get(key, 0)
    if type(value) not in (int, float) or value < 0 or not isfinite(value):
        raise FormatError(f"{file.path}: {key} must be a finite number above 0, not {value!r:.40}")
    return float(value) or 1.0
