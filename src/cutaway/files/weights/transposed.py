"""A file of one matrix: another file's, the other way round."""

from types import MappingProxyType

import numpy as np

from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo

_PLAIN = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}


class TransposedFile(ModelFile):
    """The transpose of a file's matrix, under a name of its own; closing it closes no other file.

    A matrix of numbers is transposed exactly; one of quant blocks becomes F16.
    """

    def __init__(self, source: ModelFile, matrix: str, name: str) -> None:
        self.path, self.metadata = source.path, source.metadata
        self._source, self._matrix = source, matrix
        info = source.info(matrix)
        format = info.format if info.format in _PLAIN else "F16"
        self.tensors = MappingProxyType({name: TensorInfo(name, format, info.shape[::-1])})

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``."""
        self.info(name)
        source = self._source.info(self._matrix)
        if source.format in _PLAIN:
            data = np.asarray(self._source.raw(self._matrix)[:])
            numbers = data.view(_PLAIN[source.format]).reshape(source.shape)
        else:
            numbers = self._source.dequantize(self._matrix).astype(np.float16)
        return np.ascontiguousarray(numbers.T).reshape(-1).view(np.uint8)

    def close(self) -> None:
        """See ``ModelFile``."""
