"""A folder of PEFT with the face of a GGUF adapter: adapter_config.json, adapter_model.safetensors.

Knows what PEFT calls things, and which of its adapters are plain LoRA; the others are refused by
name. Rows of B are moved as those of the model's own matrices are.
"""

import re
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.diffusion import DIFFUSION
from cutaway.files.huggingface.families import FAMILIES, Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite, as_it_is, transposed
from cutaway.files.huggingface.tensors import gguf_name
from cutaway.files.weights import ModelFile, TensorInfo
from cutaway.files.weights.cursor import quoted
from cutaway.files.weights.safetensors import SafetensorsFile

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.(?:default\.)?weight")
_MODULE = re.compile(r"[\w.]+", re.ASCII)
_HALVES = {"F32": "<f4", "F16": "<u2", "BF16": "<u2"}
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False,), "bias": ("none",), "lora_bias": (False,), "use_qalora": (False,),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
"""Beside these values a setting makes something else of an adapter."""
_ABSENT = (
    "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters",
    "alora_invocation_tokens", "megatron_config", "arrow_config",
)  # fmt: skip


class PeftFolder(ModelFile):
    """An adapter's matrices by GGUF's names, in the format of its file.

    scales  by matrix: by what its product is multiplied
    Raises `InputError` if a file cannot be opened and `FormatError` for what is not plain LoRA.
    """

    def __init__(self, path: Path, architecture: str, heads: int, kv_heads: int) -> None:
        self.path = path
        if not (path / WEIGHTS).is_file():
            hint = "; it has a .bin file: save the adapter as safetensors"
            raise FormatError(
                f"{path}: the folder has no {WEIGHTS}{hint if [*path.glob('*.bin')] else ''}"
            )
        config = JsonObject.read(path / CONFIG)
        _check_plain(config)
        families = _families(architecture)
        self._file: SafetensorsFile | None = SafetensorsFile(path / WEIGHTS)
        self._rewrites = families[0].rewrites(heads, kv_heads)
        self._sources: dict[str, str] = {}  # GGUF's name -> the file's
        scales: dict[str, float] = {}
        for name in self._file.names:
            module, new = _names(families, name)
            if new in self._sources:
                raise FormatError(f"{path}: {quoted(name)} and {quoted(self._sources[new])} are "
                                  "one and the same: save the adapter again")  # fmt: skip
            self._sources[new] = name
            matrix, _, ending = new.rpartition(".")
            if ending == "lora_a":
                scales[matrix] = _scale(config, module, self._file.info(name))
        self.metadata = MappingProxyType({})
        self.scales = MappingProxyType(scales)
        infos = {new: self._file.info(name) for new, name in self._sources.items()}
        self.tensors = MappingProxyType(
            {new: TensorInfo(new, info.format, info.shape) for new, info in infos.items()}
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See `ModelFile`; a new array."""
        info = self.info(name)
        if self._file is None:
            raise InputError(f"{self.path}: the folder is closed, so {name} cannot be read")
        stored = np.frombuffer(self._file.raw(self._sources[name]).tobytes(), _HALVES[info.format])
        made = self._rewrite(name)(stored.reshape(info.shape))
        return np.ascontiguousarray(made).reshape(-1).view(np.uint8)

    def _rewrite(self, name: str) -> Rewrite:
        """A product has the rows of B, and the columns of A are not moved.

        Nor is it transposed, where its matrix is: A reads what the layer reads.
        """
        base = name.split(".")[-3]
        found = self._rewrites.get(base, as_it_is) if name.endswith("lora_b") else as_it_is
        return as_it_is if found is transposed else found

    def release(self, name: str) -> None:
        """See `ModelFile`."""
        self.info(name)
        if self._file is not None:
            self._file.release(self._sources[name])

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _families(architecture: str) -> list[Family]:
    """Those that may have an adapter for a model of this architecture."""
    known = {**FAMILIES, **DIFFUSION}.values()
    found = [each for each in known if each.architecture == architecture and not each.modulated]
    if found:
        return found
    raise FormatError(
        f"folders of PEFT cannot be read for models of the architecture {architecture!r:.40}: "
        "convert the adapter to GGUF"
    )


def _check_plain(config: JsonObject) -> None:
    """FormatError for what is not plain LoRA."""
    if not config:
        raise FormatError(f"{CONFIG} is missing or empty: the folder holds no adapter")
    config.must_be("peft_type", "LORA")
    for name, allowed in _PLAIN.items():
        config.must_be(name, *allowed)
    for name in _ABSENT:
        if config.get(name):
            config.refuse(name, "only plain LoRA is")
    config.positive("lora_alpha")
    config.flag("use_rslora")
    config.size("r")


def _names(families: Sequence[Family], name: str) -> tuple[str, str]:
    """The module, and GGUF's name of the tensor."""
    found = _TENSOR.fullmatch(name)
    each = (gguf_name(family, f"{found[1]}.weight") for family in families if found)
    new = next(filter(None, each), None)
    if found is None or new is None:
        raise FormatError(
            f"the tensor {quoted(name)} is of no linear layer of this family of models: only plain "
            "LoRA of an adapter is supported"
        )
    if "_exps" in new[0]:
        raise FormatError(f"the tensor {quoted(name)} is of an expert, which is not supported")
    return found[1], f"{new[0]}.lora_{found[2].lower()}"


def _scale(config: JsonObject, module: str, a: TensorInfo) -> float:
    """By what a module's product is multiplied; FormatError where its rank is another."""
    alpha = _of_module(config, "alpha_pattern", module).positive("lora_alpha")
    rank = _of_module(config, "rank_pattern", module).size("r")
    if rank != a.shape[0]:
        raise FormatError(f"{CONFIG}: r is {rank}, and the file has {a.shape[0]} for {module:.80}")
    return alpha / (sqrt(rank) if config.flag("use_rslora") else rank)


def _of_module(config: JsonObject, key: str, module: str) -> JsonObject:
    """The settings, with what a pattern says of a module instead of its usual number."""
    usual = "lora_alpha" if key == "alpha_pattern" else "r"
    patterns = config.part(key)
    for pattern in patterns.values:
        if not _MODULE.fullmatch(pattern):
            config.refuse(key, "only names of modules are, and no expressions")
        if f".{module}".endswith(f".{pattern}"):
            return JsonObject({usual: patterns.get(pattern)}, f"{CONFIG}: {key} of {pattern:.80}")
    return config
