"""A model's file with its matrices in another format, each quantised when it is read.

Knows which tensors are quantised, and to what. The rule is llama.cpp's, except that with 4 bits the
embedding gets the output matrix's format, since it often is the output matrix too.

* Matrices and stacks of them, by names that end in "weight", get the format that was asked for.
* Norms, biases and all other vectors, an expert's router and embeddings of positions keep their
  numbers: they are small, and much depends on them. As F32, since others read them only so.
* token_embd and output get Q6_K where Q4_0 or Q4_1 was asked for: their errors reach every logit.
* Rows that are not whole quant blocks of Q6_K get Q8_0; of Q8_0, Q4_0 or Q4_1, they keep theirs.
"""

from collections.abc import Mapping
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.base.resources import default_threads
from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import quoted
from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.file import ModelFile, TensorInfo
from cutaway.files.weights.formats import FORMATS

if TYPE_CHECKING:
    from cutaway.base._native import Pool

PLAIN = ("F32", "F16", "BF16")
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q6_K": 18, "BF16": 32}
_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION: what the quant blocks' bytes mean
_SENSITIVE = ("_norm", "ffn_gate_inp", "position_embd", "token_types")
_VOCABULARY = ("token_embd.weight", "output.weight")
_AT_ONCE = 1 << 22  # weights: bounds the memory of decoding, and how long Ctrl-C waits


class QuantisedFile(ModelFile):
    """Another file's tensors, quantised to a chosen format; closing this closes the other.

    to       Q8_0, Q6_K, Q4_1, Q4_0, F16, BF16 or F32
    threads  that quantise; None takes one for each processor that this process may use
    fallback_tensors  those whose rows do not fit into their format, and that got another

    ``raw`` quantises anew each time, in new memory, and raises FormatError where a weight is not
    finite, or too large for the format. InputError where the native extension was not built.
    """

    def __init__(self, source: ModelFile, to: str, *, threads: int | None = None) -> None:
        self.path, self._source, self._threads = source.path, source, threads
        wanted = {name: _wanted(info, to) for name, info in source.tensors.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: _fitting(info, wanted[name]) for name, info in source.tensors.items()}
        )
        self.fallback_tensors = tuple(
            n for n, info in self.tensors.items() if info.format != wanted[n]
        )
        changed = {
            "general.file_type": _FILE_TYPES[to],
            "general.quantization_version": _QUANTIZATION_VERSION,
        }
        self.metadata = MappingProxyType({**source.metadata, **changed})
        self.value_types = {k: t for k, t in source.value_types.items() if k not in changed}

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See `ModelFile`; the source's own bytes where its format stays."""
        want, data = self.info(name), self._source.raw(name)
        have = self._source.tensors[name]
        if have.format == want.format:
            return data
        made, count = np.empty(want.nbytes, np.uint8), prod(want.shape)
        for first in range(0, count, _AT_ONCE):
            part = first, min(first + _AT_ONCE, count)  # rows are whole quant blocks: so is this
            old, new = (slice(*map(FORMATS[f].nbytes, part)) for f in (have.format, want.format))
            self._quantise(have, data[old], want, made[new])
        made.flags.writeable = False
        return made

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        self._source.expect(name)

    def release(self, name: str) -> None:
        """See `ModelFile`."""
        self._source.release(name)

    def close(self) -> None:
        """See `ModelFile`; the threads end, too."""
        self._source.close()
        self.__dict__.pop("_pool", None)

    @cached_property
    def _pool(self) -> "Pool":
        try:
            from cutaway.base._native import Pool
        except ImportError as error:
            raise InputError(
                "quantize needs the native extension, which was not built here"
            ) from error
        return Pool(self._threads or default_threads().count)

    def _quantise(
        self, have: TensorInfo, data: NDArray[np.uint8], want: TensorInfo, out: NDArray[np.uint8]
    ) -> None:
        """Quantise whole quant blocks of a tensor."""
        pool, format = self._pool, have.format
        from cutaway.base._native import quantise

        if format not in PLAIN:
            data, format = dequantize(FORMATS[format], data).view(np.uint8), "F32"
        if quantise(pool, format, data, want.format, out) >= 0:
            self._refuse(want, dequantize(FORMATS[format], data))

    def _refuse(self, want: TensorInfo, numbers: NDArray[np.float32]) -> None:
        where = f"{self.path}: the tensor {quoted(want.name)}"
        if not np.isfinite(numbers).all():
            raise FormatError(f"{where} holds weights that are not finite; get the model again")
        most = np.abs(numbers).max()
        raise FormatError(
            f"{where} holds weights up to {most:.3g}, which is too large for {want.format}; "
            "quantise to another format, or leave the model as it is"
        )


def refuse_quantised(file: ModelFile, fix: str) -> None:
    """InputError where a file's matrices are quantised already; fix: what to do instead."""
    found = {info.format for info in file.tensors.values() if _is_matrix(info)}
    if quantised := found.difference(PLAIN):
        raise InputError(
            f"quantize: {file.path} is quantised already ({', '.join(sorted(quantised))}), and a "
            f"second time would lose more: {fix}"
        )


def _is_matrix(info: TensorInfo) -> bool:
    """Whether a tensor is quantised."""
    whole = info.name.endswith("weight") and len(info.shape) > 1
    return whole and not any(part in info.name for part in _SENSITIVE)


def _wanted(info: TensorInfo, to: str) -> str:
    if not _is_matrix(info):
        return "F32" if info.format in PLAIN else info.format
    return "Q6_K" if to in ("Q4_0", "Q4_1") and info.name in _VOCABULARY else to


def _fitting(info: TensorInfo, wanted: str) -> TensorInfo:
    """The tensor in the format that is wanted, or in the best that its rows fit into."""
    for format in (wanted, *(["Q8_0"] if wanted == "Q6_K" else [])):
        if info.shape[-1] % FORMATS[format].quant_block_elements == 0:
            return TensorInfo(info.name, format, info.shape)
    return TensorInfo(info.name, info.format, info.shape)
