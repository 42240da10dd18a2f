"""What a model's file says of the model, before anything is computed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Thread
from typing import Self, TypeVar

from cutaway.compute import model
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.setup import check_quantize
from cutaway.compute.model import Graph, ModelConfig
from cutaway.errors import FormatError
from cutaway.files.weights import ModelFile
from cutaway.text import Tokenizer

T = TypeVar("T")


def open_as(path: Path, quantize: str | None, threads: int | None = None) -> ModelFile:
    """A model's file; quantize: with its matrices in that format, one of MIXES.

    InputError for another format, or where they are quantised already.
    """
    check_quantize(quantize)
    file = open_model(path)
    if quantize is None:
        return file
    from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised

    refuse_quantised(file, "leave quantize out")
    return QuantisedFile(file, quantize, threads=threads)


@dataclass(frozen=True)
class Parts:
    """What a file says of its model.

    nbytes      of all weights, as they are stored
    parameters  numbers in all tensors
    format      the one that most bytes are stored in
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
        """FormatError where the model's vocabulary is not the tokenizer's.

        context: the most tokens of a text; None is as many as the model can
        load: called while the tokenizer is read in another thread
        """
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config, graph = model.build(file.metadata, shapes, context)
        read = start(lambda: Tokenizer.from_gguf(file.metadata))
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
        [(main_format, _)] = stored.most_common(1)
        parameters = sum(prod(shape) for shape in shapes.values())
        return cls(config, graph, tokenizer, stored.total(), parameters, main_format)


def start(work: Callable[[], T]) -> Callable[[], T]:
    """Run work in a thread, or here where none can be had.

    The answer is a function that waits for its result or error.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)  # not joined where something else fails first
    try:
        thread.start()
    except RuntimeError:  # the system has no more threads
        run()

    def result() -> T:
        if thread.ident is not None:
            thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return result
