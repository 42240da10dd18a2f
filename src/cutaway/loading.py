"""From a model's file to what computes it.

Knows which parts a model has and that they must fit each other. Refuses to know requests.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cutaway import backends, model
from cutaway.backends import Backend
from cutaway.engine import DraftModel
from cutaway.errors import FormatError, InputError
from cutaway.model import Graph, ModelConfig
from cutaway.text import Tokenizer
from cutaway.weights import GGUFFile


@dataclass(frozen=True)
class Parts:
    """What a file says of its model. nbytes: of all weights, as they are stored."""

    config: ModelConfig
    graph: Graph
    tokenizer: Tokenizer
    nbytes: int

    @classmethod
    def read(cls, file: GGUFFile) -> Self:
        """FormatError where the model and its tokenizer are not of one vocabulary."""
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config, graph = model.build(file.metadata, shapes)
        tokenizer = Tokenizer.from_gguf(file.metadata)
        if graph.ops[-1].out.width != tokenizer.vocab_size:
            raise FormatError(
                f"the model predicts {graph.ops[-1].out.width} tokens and its tokenizer has "
                f"{tokenizer.vocab_size}"
            )
        return cls(config, graph, tokenizer, sum(info.nbytes for info in file.tensors.values()))


def draft_model(path: Path, target: Parts, backend: Backend, context: int) -> DraftModel:
    """The model in a file, to guess for another, on its backend's threads.

    context: how many tokens the target's texts can have. InputError where the tokens differ, or
    memory is full.
    """
    with GGUFFile(path) as file:
        parts = Parts.read(file)
        if not parts.tokenizer.has_tokens_of(target.tokenizer):
            raise InputError(
                f"speculate: {path.stem} has other tokens than the model it is to guess for; "
                "a draft model must have the same"
            )
        context = min(parts.config.context_length, context)
        try:
            computes = backends.load(
                backend.name, parts.graph, file, kv_blocks=backend.kv_blocks, context=context,
                pool=backend.pool,
            )  # fmt: skip
        except MemoryError as error:
            raise InputError(
                f"speculate: {path.name} does not fit into memory beside the model: lower context"
            ) from error
    return DraftModel(computes, context, parts.nbytes / target.nbytes)
