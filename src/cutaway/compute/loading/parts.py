"""What a model's file says of it, before anything is computed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Self

from cutaway.compute import model
from cutaway.compute.loading import background
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.setup import check_quantize
from cutaway.compute.model import Graph, ModelConfig
from cutaway.errors import FormatError
from cutaway.files.weights import ModelFile
from cutaway.text import Tokenizer


def open_as(path: Path, quantize: str | None, threads: int | None = None) -> ModelFile:
    """A model's file; quantize: with its matrices in that format, one of QUANTIZE.

    InputError for another format, or where they are quantised already.
    """
    check_quantize(quantize)
    file = open_model(path)
    if quantize is None:
        return file
    from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised

    refuse_quantised(file, "leave quantize out")
    return QuantisedFile(file, quantize.upper(), threads=threads)


@dataclass(frozen=True)
class Parts:
    """What a file says of its model.

    nbytes      of all weights, as they are stored
    parameters  numbers in all tensors
    format      of most of its bytes
    """

    config: ModelConfig
    graph: Graph
    tokenizer: Tokenizer
    nbytes: int
    parameters: int
    format: str

    @classmethod
    def read(
        cls, file: ModelFile, context: int | None = None,
        load: Callable[[ModelConfig, Graph], None] = lambda _config, _graph: None,
    ) -> Self:  # fmt: skip
        """FormatError where the model and its tokenizer are not of one vocabulary.

        context: the tokens that texts may have; None is as many as the model can.
        load: what to do with these two while the tokenizer is read, which keeps one processor busy
        """
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config, graph = model.build(file.metadata, shapes, context)
        read = background.start(lambda: Tokenizer.from_gguf(file.metadata))
        load(config, graph)
        tokenizer = read()
        rows = shapes[graph.ops[0].weights["weight"]][0]
        if rows != tokenizer.vocab_size:
            raise FormatError(
                f"the model has {rows} tokens and its tokenizer has {tokenizer.vocab_size}"
            )
        stored = Counter[str]()
        for info in file.tensors.values():
            stored[info.format] += info.nbytes
        [(most, _)] = stored.most_common(1)
        parameters = sum(prod(shape) for shape in shapes.values())
        return cls(config, graph, tokenizer, stored.total(), parameters, most)
