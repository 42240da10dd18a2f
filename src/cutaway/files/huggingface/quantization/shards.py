"""A folder's tensors with each quantised matrix as one tensor. Knows no method."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.quantization.grouped import Grouped
from cutaway.files.huggingface.quantization.method import Method
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import TensorBytes, TensorInfo
from cutaway.files.weights.cursor import quoted

ORDER = ".order"
"""The ending of a vector beside a matrix: which input each of its columns is for (act-order)."""

_OF_ACTIVATIONS = (
    ".input_scale", ".input_zero_point", ".input_global_scale", ".input_scale_ub", ".output_scale",
    ".activation_scale", ".q_scale", ".k_scale", ".v_scale",
)  # fmt: skip


class QuantisedShards(Shards):
    """The tensors of some shards. How activations, keys and values would be rounded is left out.

    A quantised matrix has its name with ".weight", its format, and as its elements each row's quant
    blocks: uint8 (rows, bytes of a row).
    """

    def __init__(self, shards: Shards, method: Method) -> None:
        """FormatError for a matrix that is not whole, or where none is quantised."""
        self._where, self._files = shards._where, shards._files
        self._matrices, self._of_part = dict[str, Grouped](), dict[str, Grouped]()
        for matrix in method.matrices(shards):
            self._matrices[f"{matrix.name}.weight"] = matrix
            self._of_part |= dict.fromkeys(matrix.parts, matrix)
        if not self._matrices:
            raise FormatError(
                "config.json's quantization_config says that matrices are quantised, and none is: "
                "remove it to use the weights as they are"
            )
        for name in self._matrices:
            if name in self._where and name not in self._of_part:
                raise FormatError(f"the tensor {quoted(name)} is there twice, once quantised")

    def __iter__(self) -> Iterator[str]:
        done = set[str]()
        for name in self._where:
            matrix = self._of_part.get(name)
            if matrix is None:
                if not name.endswith(_OF_ACTIVATIONS):
                    yield name
            elif matrix.name not in done:
                done.add(matrix.name)
                yield f"{matrix.name}.weight"
                if matrix.order is not None:
                    yield matrix.name + ORDER

    def info(self, name: str) -> TensorInfo:
        """See `Shards`."""
        if (matrix := self._matrices.get(name)) is not None:
            return TensorInfo(name, matrix.format, matrix.shape)
        if (order := self._order(name)) is not None:
            return TensorInfo(name, "F32", order.shape)
        return super().info(name)

    def read(self, name: str) -> NDArray[Any]:
        """See `Shards`."""
        if (matrix := self._matrices.get(name)) is not None:
            return matrix.rows()
        order = self._order(name)
        return super().read(name) if order is None else order.astype(np.float32)

    def raw(self, name: str) -> TensorBytes:
        """See `Shards`."""
        if name in self._matrices or self._order(name) is not None:
            return self.read(name).reshape(-1).view(np.uint8)
        return super().raw(name)

    def _order(self, name: str) -> NDArray[np.int32] | None:
        matrix = self._matrices.get(f"{name.removesuffix(ORDER)}.weight")
        return matrix.order if matrix is not None and name.endswith(ORDER) else None
