"""A model's file with its matrices in other formats, each quantised when it is read.

Knows how a tensor's numbers become bytes; `mixes` chooses the formats. Tensors that are not
quantised are F32 afterwards, the only format in which other programs read norms and biases.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.resources import default_threads
from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import quote
from cutaway.files.weights.decode import dequantize
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo
from cutaway.files.weights.formats import FORMATS
from cutaway.files.weights.importance import Importance
from cutaway.files.weights.mixes import MIXES, PLAIN_MIXES, fitting, formats_of, is_matrix

if TYPE_CHECKING:
    from cutaway.base._native import Pool


Floats = NDArray[np.float32]

PLAIN = ("F32", "F16", "BF16")
_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION: what the quant blocks' bytes mean
_AT_ONCE = 1 << 22  # weights: bounds the memory of decoding, and how long Ctrl-C waits


class QuantisedFile(ModelFile):
    """Another file's tensors, quantised to a mix of formats; closing this file closes the other.

    to          one of `MIXES` or `PLAIN_MIXES`: "q4_k_m"
    threads     how many threads quantise; None: one for each processor that this process may use
    importance  how much each column of the matrices matters
    formats     tensor -> the format that replaces the mix's
    fallback_tensors  tensors that got another format, as their rows are no whole quant blocks

    ``raw`` quantises anew each time, in new memory, and raises FormatError if a weight is not
    finite, or too large for the format. InputError if the native extension was not built.
    """

    def __init__(
        self, source: ModelFile, to: str,
        *, threads: int | None = None, importance: Importance | None = None,
        formats: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.path, self._source, self._threads = source.path, source, threads
        self._importance = importance
        mix_formats = formats_of(
            to, source.metadata, source.tensors, with_importance=importance is not None
        )
        targets = {
            name: formats.get(name) or mix_formats.get(name) or _plain_format(info)
            for name, info in source.tensors.items()
        }
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                name: TensorInfo(name, fitting(targets[name], info.shape[-1]), info.shape)
                for name, info in source.tensors.items()
            }
        )
        self.fallback_tensors = tuple(
            n for n, info in self.tensors.items() if info.format != targets[n]
        )
        changed: dict[str, Any] = {
            "general.file_type": ({**MIXES, **PLAIN_MIXES})[to].file_type,
            "general.quantization_version": _QUANTIZATION_VERSION,
        }
        if importance is not None:
            changed |= importance.to_metadata()
        self.metadata = MappingProxyType({**source.metadata, **changed})
        self.value_types = {k: t for k, t in source.value_types.items() if k not in changed}

    def raw(self, name: str) -> TensorBytes:
        """See `ModelFile`; the source's own bytes if the format is the same."""
        want, data = self.info(name), self._source.raw(name)
        have = self._source.tensors[name]
        if have.format == want.format:
            return data
        out = np.empty(want.nbytes, np.uint8)
        for first, last, weights in self._pieces(want):
            old, new = (
                slice(*map(FORMATS[f].nbytes, (first, last))) for f in (have.format, want.format)
            )
            self._quantise(have, data[old], want, out[new], weights)
        out.flags.writeable = False
        return out

    def _pieces(self, want: TensorInfo) -> Iterator[tuple[int, int, Floats | None]]:
        """Yield the pieces to quantise: first weight, end, and the columns' importance."""
        count, columns = prod(want.shape), want.shape[-1]
        weights = None if self._importance is None else self._importance.column_means(want)
        if weights is None:
            for first in range(0, count, _AT_ONCE):  # rows are whole quant blocks: so is this
                yield first, min(first + _AT_ONCE, count), None
            return
        of_one, step = count // len(weights), max(_AT_ONCE // columns, 1) * columns
        for i, of_columns in enumerate(weights):
            for first in range(i * of_one, (i + 1) * of_one, step):
                yield first, min(first + step, (i + 1) * of_one), of_columns

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        self._source.expect(name)

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
                "quantize", " needs the native extension, which was not built here"
            ) from error
        return Pool(self._threads or default_threads().count)

    def _quantise(
        self, have: TensorInfo, data: NDArray[np.uint8], want: TensorInfo, out: NDArray[np.uint8],
        weights: Floats | None,
    ) -> None:  # fmt: skip
        """Quantise whole quant blocks of a tensor."""
        pool, format = self._pool, have.format
        from cutaway.base._native import quantise

        if format not in PLAIN:
            data, format = dequantize(FORMATS[format], data).view(np.uint8), "F32"
        if quantise(pool, format, data, want.format, out, weights) >= 0:
            self._refuse(want, dequantize(FORMATS[format], data))

    def _refuse(self, want: TensorInfo, numbers: NDArray[np.float32]) -> None:
        tensor = f"{self.path}: the tensor {quote(want.name)}"
        if not np.isfinite(numbers).all():
            raise FormatError(f"{tensor} holds weights that are not finite; get the model again")
        largest = np.abs(numbers).max()
        raise FormatError(
            f"{tensor} holds weights up to {largest:.3g}, which is too large for {want.format}; "
            "quantise to another format, or leave the model as it is"
        )


def refuse_quantised(file: ModelFile, fix: str) -> None:
    """Raise InputError if a file's matrices are quantised already; fix: what to do instead."""
    formats = {info.format for info in file.tensors.values() if is_matrix(info)}
    if quantised := formats.difference(PLAIN):
        raise InputError(
            "quantize",
            f": {file.path} is quantised already ({', '.join(sorted(quantised))}), and a "
            f"second time would lose more: {fix}",
        )


def _plain_format(info: TensorInfo) -> str:
    return "F32" if info.format in PLAIN else info.format


# -- some tensors taken from other files of the same model -----------------------------------------


_OF_FORMATS = ("general.file_type", "general.quantization_version")


class MixedFile(ModelFile):
    """The tensors of ``base``, with those named in ``instead`` and their factors from other files.

    Metadata and order are those of ``base``, but keys about quantisation are those of the file with
    most of the bytes. Closing this closes none of the files.
    """

    def __init__(self, base: ModelFile, instead: Mapping[str, ModelFile]) -> None:
        self.path, self._base, self._instead = base.path, base, dict(instead)
        scales = {_scale(name): file for name, file in instead.items()}
        self._instead |= {name: file for name, file in scales.items() if name in file.tensors}
        names = dict.fromkeys((*base.tensors, *self._instead))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                name: self._file(name).info(name)
                for name in names
                if name not in scales or name in self._instead
            }
        )
        largest = self._largest_source()
        format_keys = {key: largest.metadata[key] for key in _OF_FORMATS if key in largest.metadata}
        metadata = {key: value for key, value in base.metadata.items() if key not in _OF_FORMATS}
        self.metadata = MappingProxyType(metadata | format_keys)
        types = {k: t for k, t in base.value_types.items() if k not in _OF_FORMATS}
        self.value_types = types | {
            k: t for k, t in largest.value_types.items() if k in _OF_FORMATS
        }

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``."""
        return self._file(name).raw(name)

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self._file(name).expect(name)

    def close(self) -> None:
        """Do nothing; see the class."""

    def _file(self, name: str) -> ModelFile:
        return self._instead.get(name, self._base)

    def _largest_source(self) -> ModelFile:
        """Return the file with most of the bytes."""
        files = {id(file): file for file in (self._base, *self._instead.values())}
        sizes = Counter[int]()
        for name, info in self.tensors.items():
            sizes[id(self._file(name))] += info.nbytes
        return files[max(sizes, key=sizes.__getitem__)]


def _scale(name: str) -> str:
    """Return the name of a matrix's factors; see ``ModelFile.factors``."""
    return name.removesuffix(".weight") + ".scale"
