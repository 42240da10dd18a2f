"""Which method a folder's config says its matrices were quantised with.

Knows the names of all methods, and refuses those that are not read.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization.auto_round import read_auto_round
from cutaway.files.huggingface.quantization.awq import Awq
from cutaway.files.huggingface.quantization.bitsandbytes import BitsAndBytes
from cutaway.files.huggingface.quantization.compressed_tensors import CompressedTensors
from cutaway.files.huggingface.quantization.fp8 import Fp8
from cutaway.files.huggingface.quantization.gptq import Gptq
from cutaway.files.huggingface.quantization.grouped import Grouped
from cutaway.files.huggingface.quantization.mxfp4 import Mxfp4
from cutaway.files.huggingface.shards import Shards

OLD_CONFIGS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files that say it in folders from before config.json did, and of which method."""
_KEYS = ("quantization_config", "compression_config")


class Method(Protocol):
    """One way of packing matrices into several tensors."""

    def matrices(self, shards: Shards) -> Iterator[Grouped]:
        """Those of a folder; FormatError for one that is not whole."""
        ...


METHODS: Mapping[str, Callable[[JsonObject], Method]] = {
    "awq": Awq.read,
    "gptq": Gptq.read,
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "compressed-tensors": CompressedTensors.read,
    "fp8": Fp8.read,
    "fbgemm_fp8": Fp8.read,
    "modelopt": Fp8.read,
    "bitsandbytes": BitsAndBytes.read,
    "mxfp4": Mxfp4.read,
}
"""By config.json's quant_method."""


def quantization_of(settings: JsonObject, folder: Path) -> Method | None:
    """How a folder's matrices are quantised; None where they are not.

    settings: config.json. FormatError for a method or a variant that is not read.
    """
    said = next((settings.part(key) for key in _KEYS if settings.get(key) is not None), None)
    if said is None:
        for name, method in OLD_CONFIGS.items():
            if (folder / name).is_file():
                return METHODS[method](JsonObject.read(folder / name))
        return None
    method = said.text("quant_method") or ""
    if method == "torchao":
        raise FormatError(
            f"{said.file}: the weights are quantised with 'torchao', whose tensors cutaway does "
            "not read: take the folder that was quantised, and name a format (--quantize q8_0, "
            "q4_k_m) to have its weights in 8 or 4 bits"
        )
    if method not in METHODS:
        how = repr(method)[:40] if method else "a method that it does not name"
        raise FormatError(
            f"{said.file}: the weights are quantised with {how}, and cutaway reads "
            f"{', '.join(METHODS)}: take the model quantised with one of these, the folder that is "
            "not quantised, or a .gguf file"
        )
    return METHODS[method](said)
