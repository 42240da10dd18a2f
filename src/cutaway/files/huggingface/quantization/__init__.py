"""Quantised matrices of folders: AWQ, GPTQ, AutoRound, compressed-tensors, bitsandbytes, floats,
ModelOpt, torchao, MLX.

Knows the names of all methods, refuses those that are not supported, and shows a folder's tensors
with each quantised matrix as one tensor in a format of `weights.formats`, exactly: codes, zero
points and scales are the file's own numbers. Each method's module knows how it packs them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.bitnet import BitNet
from cutaway.files.huggingface.quantization.bitsandbytes import BitsAndBytes
from cutaway.files.huggingface.quantization.compressed_tensors import CompressedTensors
from cutaway.files.huggingface.quantization.floats import Fp8, Mxfp4
from cutaway.files.huggingface.quantization.gptq_awq import Awq, Gptq, read_auto_round
from cutaway.files.huggingface.quantization.grouped import Grouped
from cutaway.files.huggingface.quantization.inkling import InklingExperts
from cutaway.files.huggingface.quantization.mlx import Mlx
from cutaway.files.huggingface.quantization.nvfp4 import ModelOpt
from cutaway.files.huggingface.quantization.torchao import TorchAo
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights import TensorBytes, TensorInfo
from cutaway.files.weights.cursor import quote

# -- the method that a config names ----------------------------------------------------------------


OLD_CONFIGS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Older files for the settings that config.json has now, and the method that each belongs to."""
_KEYS = ("quantization_config", "compression_config")
_OF_MLX, _OF_MODELOPT = "quantization", "hf_quant_config.json"


class Method(Protocol):
    """One way of packing matrices into several tensors."""

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Yield a folder's quantised matrices; FormatError for one that is not whole."""
        ...


METHODS: Mapping[str, Callable[[JsonObject], Method]] = {
    "awq": Awq.read,
    "gptq": Gptq.read,
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "compressed-tensors": CompressedTensors.read,
    "fp8": Fp8.read,
    "fbgemm_fp8": Fp8.read,
    "modelopt": ModelOpt.read,
    "modelopt_fp4": ModelOpt.read,
    "bitnet": BitNet.read,
    "bitsandbytes": BitsAndBytes.read,
    "mxfp4": Mxfp4.read,
    "torchao": TorchAo.read,
}
"""How to read each quant_method of config.json."""


def quantization_of(
    settings: JsonObject, folder: Path, tensors: Iterable[str] = ()
) -> Method | None:
    """Return how a folder's matrices are quantised; None if they are not.

    settings: config.json; tensors: the names of the folder's tensors, as soon as they are known.
    FormatError for a method or a variant that is not supported.
    """
    is_inkling = settings.get("model_type") in InklingExperts.MODELS
    if is_inkling and (not tensors or InklingExperts.are_in(tensors)):
        return InklingExperts()
    config = next((settings.part(key) for key in _KEYS if settings.get(key) is not None), None)
    if settings.get(_OF_MLX) is not None and not (config and config.get("quant_method")):
        return Mlx.read(settings.part(_OF_MLX))
    if config is None:
        for name, method in OLD_CONFIGS.items():
            if (folder / name).is_file():
                return METHODS[method](JsonObject.read(folder / name))
        if (folder / _OF_MODELOPT).is_file():
            return ModelOpt.read(JsonObject.read(folder / _OF_MODELOPT))
        return None
    method = config.text("quant_method") or ""
    if method not in METHODS:
        method_name = repr(method)[:40] if method else "a method that it does not name"
        raise FormatError(
            f"{config.file}: the weights are quantised with {method_name}, and cutaway reads "
            f"{', '.join(METHODS)}: take the model quantised with one of these, the folder that is "
            "not quantised, or a .gguf file"
        )
    return METHODS[method](config)


# -- a folder's tensors ----------------------------------------------------------------------------


ORDER = ".order"
"""The ending of the name of a matrix's column order: the input of each column (act-order)."""
FACTOR = ".factor"
"""The ending of the name of a matrix's factor, by which products with it are multiplied."""

_OF_ACTIVATIONS = (
    ".input_scale", ".input_zero_point", ".input_global_scale", ".input_scale_ub", ".output_scale",
    ".activation_scale", "._weight_act_per_tensor_scale", ".q_scale", ".k_scale", ".v_scale",
)  # fmt: skip


class QuantisedShards(Shards):
    """The tensors of some shards, without settings for rounding activations, keys and values.

    A quantised matrix has its name with ".weight", its format, and as its elements each row's quant
    blocks: uint8 (rows, bytes of a row).
    """

    def __init__(self, shards: Shards, method: Method) -> None:
        """Raise FormatError if a matrix lacks a tensor, or if no matrix is quantised."""
        self._file_of, self._files = shards._file_of, shards._files
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
            if name in self._file_of and name not in self._of_part:
                raise FormatError(f"the tensor {quote(name)} is there twice, once quantised")

    def __iter__(self) -> Iterator[str]:
        done = set[str]()
        for name in self._file_of:
            matrix = self._of_part.get(name)
            if matrix is None:
                if not name.endswith(_OF_ACTIVATIONS):
                    yield name
            elif matrix.name not in done:
                done.add(matrix.name)
                yield f"{matrix.name}.weight"
                if matrix.order is not None:
                    yield matrix.name + ORDER
                if matrix.factor is not None:
                    yield matrix.name + FACTOR

    def info(self, name: str) -> TensorInfo:
        """See `Shards`."""
        if (matrix := self._matrices.get(name)) is not None:
            return TensorInfo(name, matrix.format, matrix.shape)
        if (companion := self._companion(name)) is not None:
            return TensorInfo(name, "F32", companion.shape)
        return super().info(name)

    def read(self, name: str) -> NDArray[Any]:
        """See `Shards`."""
        if (matrix := self._matrices.get(name)) is not None:
            rows = matrix.rows()
            return rows.view(np.float32) if matrix.format == "F32" else rows
        companion = self._companion(name)
        return super().read(name) if companion is None else companion.astype(np.float32)

    def raw(self, name: str) -> TensorBytes:
        """See `Shards`."""
        if name in self._matrices or self._companion(name) is not None:
            return self.read(name).reshape(-1).view(np.uint8)
        return super().raw(name)

    def _companion(self, name: str) -> NDArray[Any] | None:
        """Return a matrix's order or factor; None for another name."""
        base, _, ending = name.rpartition(".")
        if (matrix := self._matrices.get(f"{base}.weight")) is None:
            return None
        return {ORDER: matrix.order, FACTOR: matrix.factor}.get(f".{ending}")


__all__ = ["OLD_CONFIGS", "QuantisedShards", "quantization_of"]
