"""jina-embeddings-v3's LoRA by task: one folder holds the adapters of several tasks.

Knows how torch names a matrix and what is added to it (``parametrizations``), and what config.json
says of tasks. Each task has the face of an adapter of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import CONFIG, Config
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards, shard_paths
from cutaway.files.huggingface.tensors import SourcedFile, TensorSource, gguf_name
from cutaway.files.huggingface.unread import ADDED
from cutaway.files.weights.cursor import quoted

TASKS, INSTRUCTIONS = "lora_adaptations", "task_instructions"
_POOLER = "pooler.dense."  # which is not read
_TABLES = ("token_embd.", "token_types.")


def task_instructions(folder: Path) -> Mapping[str, str]:
    """By task, what stands in front of each text ("" for nothing); none of a folder without."""
    config = JsonObject.read(folder / CONFIG)
    names, said = config.get(TASKS), config.part(INSTRUCTIONS).values
    if not names or str(config.get("model_type")) not in ("xlm-roberta", "jina_embeddings_v3"):
        return {}
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        config.fail(TASKS, "a list of names")
    if not all(isinstance(text, str) for text in said.values()):
        config.fail(INSTRUCTIONS, "an object of texts")
    with_adapters = any(ADDED in name for name in _names(folder))
    return {name: said.get(name, "") for name in names} if with_adapters else {}


def _names(folder: Path) -> list[str]:
    shards = Shards(shard_paths(folder))
    try:
        return [*shards]
    finally:
        shards.close()


@dataclass(frozen=True)
class _OfTask:
    """One task's matrix, of those of all tasks. turned: torch has it the other way round."""

    task: int
    turned: bool

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        own: NDArray[Any] = x[self.task]
        return own.T if self.turned else own


class TaskAdapter(SourcedFile):
    """The adapter of one task, by GGUF's names.

    A linear layer's A is (tasks, rank, in) and its B (tasks, out, rank); an embedding's A is
    (tasks, rows, rank) and its B (tasks, rank, hidden), which is turned.
    scales: the factor of each matrix's product, lora_alpha / lora_rank. `FormatError` for shapes
    that are not so.
    """

    def __init__(self, path: Path, task: str) -> None:
        super().__init__(path, shard_paths(path))
        shards = self._shards
        assert shards is not None
        config = Config(path, shards)
        tasks, said = [*task_instructions(path)], config.settings
        if task not in tasks:
            raise FormatError(f"{CONFIG}: {TASKS} has no {task!r:.80}")
        alpha, rank = said.positive("lora_alpha"), said.size("lora_rank")
        sources: dict[str, TensorSource] = {}
        for name in shards:
            if ADDED not in name or _POOLER in name:
                continue
            base, _, which = name.partition(ADDED)
            new, info = gguf_name(config.family, f"{base}.weight"), shards.info(name)
            if new is None or which not in ("lora_A", "lora_B"):
                raise FormatError(f"the tensor {quoted(name)} has no place in this family's tasks")
            is_table = new[0].startswith(_TABLES)
            at = 2 if is_table == (which == "lora_A") else 1  # of the rank
            if len(info.shape) != 3 or info.shape[0] != len(tasks) or info.shape[at] != rank:
                raise FormatError(
                    f"the tensor {quoted(name)} is {info.shape}, and {CONFIG} has {len(tasks)} "
                    f"tasks of rank {rank}"
                )
            turned = is_table and which == "lora_B"
            shape = info.shape[:0:-1] if turned else info.shape[1:]
            own = f"{new[0]}.{which.lower()}"
            rewrite = _OfTask(tasks.index(task), turned)
            sources[own] = TensorSource(own, info.format, shape, (name,), rewrite)
        self.metadata = MappingProxyType({})
        matrices = {name.rpartition(".")[0] for name in sources}
        self.scales = MappingProxyType(dict.fromkeys(sorted(matrices), alpha / rank))
        self.tensors = MappingProxyType(sources)
