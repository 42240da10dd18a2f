"""Folders of adapters, read as GGUF adapters: PEFT's, and jina-embeddings-v3's by task.

Knows PEFT's names, and which of its adapters are plain LoRA; other adapters are refused by name.
Rows of B are moved as the rows of the model's own matrices are. Knows how jina's folder, which has
the adapters of several tasks, names a matrix and the tensors that torch adds to it
(``parametrizations``), and which tasks config.json lists.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import CONFIG, Config
from cutaway.files.huggingface.families import FAMILIES
from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite, as_it_is, transpose
from cutaway.files.huggingface.shards import (
    PARAMETRIZED,
    Shards,
    SourcedFile,
    TensorSource,
    shard_paths,
)
from cutaway.files.huggingface.tensors import gguf_name
from cutaway.files.weights import TensorInfo
from cutaway.files.weights.cursor import quote

ADAPTER_CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.(?:default\.)?weight")
_MODULE = re.compile(r"[\w.]+", re.ASCII)
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False,), "bias": ("none",), "lora_bias": (False,), "use_qalora": (False,),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
"""Settings of plain LoRA: any other value means another kind of adapter."""
_ABSENT = (
    "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters",
    "alora_invocation_tokens", "megatron_config", "arrow_config",
)  # fmt: skip
_DELTA_NET = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out")
BY_CONFIG: Mapping[str, tuple[str, ...]] = {
    "granitehybrid": ("attn_q", "attn_k"), "qwen35": _DELTA_NET, "qwen35moe": _DELTA_NET,
    "falcon-h1": (
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ssm_in", "ssm_out",
    ),
    "bailingmoe": ("output",), "falcon": ("attn_qkv",),
}  # fmt: skip
"""Architecture -> matrices whose layout in GGUF depends on the model's config (`rewrites_of`)."""


class PeftFolder(SourcedFile):
    """An adapter's matrices by GGUF's names, in the format of its file.

    scales  matrix -> the factor of its product
    Raises `InputError` if a file cannot be opened, `FormatError` if it is not plain LoRA.
    """

    def __init__(self, path: Path, architecture: str, heads: int, kv_heads: int) -> None:
        if not (path / WEIGHTS).is_file():
            hint = "; it has a .bin file: save the adapter as safetensors"
            raise FormatError(
                f"{path}: the folder has no {WEIGHTS}{hint if [*path.glob('*.bin')] else ''}"
            )
        config = JsonObject.read(path / ADAPTER_CONFIG)
        _check_plain(config)
        families = _families(architecture)
        rewrites = families[0].rewrites(heads, kv_heads)
        super().__init__(path, [path / WEIGHTS])
        shards = self._shards
        assert shards is not None
        sources: dict[str, TensorSource] = {}
        scales: dict[str, float] = {}
        for name in shards:
            (module, new), info = _names(families, name), shards.info(name)
            if new.split(".")[-3] in BY_CONFIG.get(architecture, ()):
                raise FormatError(
                    f"the tensor {quote(name)} is of a matrix whose rows are moved or scaled by "
                    "the model's config, which an adapter does not have: convert the adapter to "
                    "GGUF"
                )
            if new in sources:
                raise FormatError(f"{path}: {quote(name)} and {quote(sources[new].sources[0])} "
                                  "are one and the same: save the adapter again")  # fmt: skip
            rewrite = _rewrite(rewrites, new)
            sources[new] = TensorSource(new, info.format, info.shape, (name,), rewrite)
            matrix, _, ending = new.rpartition(".")
            if ending == "lora_a":
                scales[matrix] = _scale(config, module, info)
        self.metadata = MappingProxyType({})
        self.scales = MappingProxyType(scales)
        self.tensors = MappingProxyType(sources)


def _rewrite(rewrites: Mapping[str, Rewrite], name: str) -> Rewrite:
    """Return the rewrite of an adapter's matrix: rows of B are moved as the layer's rows are.

    Columns of A are not moved, since A reads what the layer reads. Neither A nor B is transposed
    when the layer's matrix is.
    """
    base = name.split(".")[-3]
    rewrite = rewrites.get(base, as_it_is) if name.endswith("lora_b") else as_it_is
    return as_it_is if rewrite is transpose else rewrite


def _families(architecture: str) -> list[Family]:
    """Return the families whose adapters fit a model of this architecture."""
    families = [
        family for name, family in FAMILIES.items()
        if family.architecture == architecture and name != "mdlm"  # whose matrices are folded
    ]  # fmt: skip
    if families:
        return families
    raise FormatError(
        f"folders of PEFT cannot be read for models of the architecture {architecture!r:.40}: "
        "convert the adapter to GGUF"
    )


def _check_plain(config: JsonObject) -> None:
    """Raise FormatError if the adapter is not plain LoRA."""
    if not config:
        raise FormatError(f"{ADAPTER_CONFIG} is missing or empty: the folder holds no adapter")
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
    """Return the module, and GGUF's name of the tensor."""
    match = _TENSOR.fullmatch(name)
    names = (gguf_name(family, f"{match[1]}.weight") for family in families if match)
    new = next(filter(None, names), None)
    if match is None or new is None:
        raise FormatError(
            f"the tensor {quote(name)} is of no linear layer of this family of models: only plain "
            "LoRA of an adapter is supported"
        )
    if "_exps" in new[0]:
        raise FormatError(f"the tensor {quote(name)} is of an expert, which is not supported")
    return match[1], f"{new[0]}.lora_{match[2].lower()}"


def _scale(config: JsonObject, module: str, a: TensorInfo) -> float:
    """Return the factor of a module's product; FormatError if the file's rank differs from r."""
    alpha = _settings_of_module(config, "alpha_pattern", module).positive("lora_alpha")
    rank = _settings_of_module(config, "rank_pattern", module).size("r")
    if rank != a.shape[0]:
        raise FormatError(
            f"{ADAPTER_CONFIG}: r is {rank}, and the file has {a.shape[0]} for {module:.80}"
        )
    return alpha / (sqrt(rank) if config.flag("use_rslora") else rank)


def _settings_of_module(config: JsonObject, key: str, module: str) -> JsonObject:
    """Return the settings of a module: a pattern may replace alpha or the rank."""
    usual = "lora_alpha" if key == "alpha_pattern" else "r"
    patterns = config.part(key)
    for pattern in patterns.values:
        if not _MODULE.fullmatch(pattern):
            config.refuse(key, "only names of modules are, and no expressions")
        if f".{module}".endswith(f".{pattern}"):
            return JsonObject(
                {usual: patterns.get(pattern)}, f"{ADAPTER_CONFIG}: {key} of {pattern:.80}"
            )
    return config


# -- LoRA by task ----------------------------------------------------------------------------------


TASKS, INSTRUCTIONS = "lora_adaptations", "task_instructions"
_POOLER = "pooler.dense."  # is not read
_TABLES = ("token_embd.", "token_types.")


def task_instructions(folder: Path) -> Mapping[str, str]:
    """Return, by task, what is put in front of a text ("" for nothing); {} without tasks."""
    config = JsonObject.read(folder / CONFIG)
    names, instructions = config.get(TASKS), config.part(INSTRUCTIONS).values
    if not names or str(config.get("model_type")) not in ("xlm-roberta", "jina_embeddings_v3"):
        return {}
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        config.fail(TASKS, "a list of names")
    if not all(isinstance(text, str) for text in instructions.values()):
        config.fail(INSTRUCTIONS, "an object of texts")
    with_adapters = any(PARAMETRIZED in name for name in _tensor_names(folder))
    return {name: instructions.get(name, "") for name in names} if with_adapters else {}


def _tensor_names(folder: Path) -> list[str]:
    shards = Shards(shard_paths(folder))
    try:
        return [*shards]
    finally:
        shards.close()


@dataclass(frozen=True)
class _TaskMatrix:
    """A rewrite that takes one task's matrix from the matrices of all tasks, transposed or not."""

    task: int
    is_transposed: bool

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        matrix: NDArray[Any] = x[self.task]
        return matrix.T if self.is_transposed else matrix


class TaskAdapter(SourcedFile):
    """The adapter of one task, by GGUF's names.

    A linear layer's A is (tasks, rank, in) and its B (tasks, out, rank); an embedding's A is
    (tasks, rows, rank) and its B (tasks, rank, hidden). The embedding's B is transposed.
    scales: the factor of each matrix's product, lora_alpha / lora_rank. `FormatError` for other
    shapes.
    """

    def __init__(self, path: Path, task: str) -> None:
        super().__init__(path, shard_paths(path))
        shards = self._shards
        assert shards is not None
        config = Config(path, shards)
        tasks, settings = [*task_instructions(path)], config.settings
        if task not in tasks:
            raise FormatError(f"{CONFIG}: {TASKS} has no {task!r:.80}")
        alpha, rank = settings.positive("lora_alpha"), settings.size("lora_rank")
        sources: dict[str, TensorSource] = {}
        for name in shards:
            if PARAMETRIZED not in name or _POOLER in name:
                continue
            base, _, factor = name.partition(PARAMETRIZED)
            new, info = gguf_name(config.family, f"{base}.weight"), shards.info(name)
            if new is None or factor not in ("lora_A", "lora_B"):
                raise FormatError(f"the tensor {quote(name)} has no place in this family's tasks")
            is_table = new[0].startswith(_TABLES)
            at = 2 if is_table == (factor == "lora_A") else 1  # of the rank
            if len(info.shape) != 3 or info.shape[0] != len(tasks) or info.shape[at] != rank:
                raise FormatError(
                    f"the tensor {quote(name)} is {info.shape}, and {CONFIG} has {len(tasks)} "
                    f"tasks of rank {rank}"
                )
            is_transposed = is_table and factor == "lora_B"
            shape = info.shape[:0:-1] if is_transposed else info.shape[1:]
            new_name = f"{new[0]}.{factor.lower()}"
            rewrite = _TaskMatrix(tasks.index(task), is_transposed)
            sources[new_name] = TensorSource(new_name, info.format, shape, (name,), rewrite)
        self.metadata = MappingProxyType({})
        matrices = {name.rpartition(".")[0] for name in sources}
        self.scales = MappingProxyType(dict.fromkeys(sorted(matrices), alpha / rank))
        self.tensors = MappingProxyType(sources)
