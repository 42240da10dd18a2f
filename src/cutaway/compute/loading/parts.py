"""Reads a model's config, graph and tokenizer from its file, before anything is computed."""

from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Self, TypeVar

from cutaway.compute import model
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.setup import check_quantize
from cutaway.compute.model import Graph, ModelConfig
from cutaway.errors import FormatError
from cutaway.files.weights import ModelFile
from cutaway.text import Tokenizer

T = TypeVar("T")
Work = Callable[[], None]


def open_as(path: Path, quantize: str | None, threads: int | None = None) -> ModelFile:
    """Open a model's file; quantize: one of MIXES; matrices are quantised to it when they are read.

    InputError for another name, or if the matrices are quantised already.
    """
    check_quantize(quantize)
    file = open_model(path)
    if quantize is None:
        return file
    from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised

    refuse_quantised(file, "leave quantize out")
    return QuantisedFile(file, quantize, threads=threads)


def no_work() -> None:
    """Do nothing."""


class Parts(NamedTuple):
    """A model as its file describes it.

    nbytes      the bytes of all weights, as they are stored
    parameters  how many numbers all tensors have
    format      the format in which most bytes are stored
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
        prepare: Callable[[ModelConfig, Graph], Work] = lambda _config, _graph: no_work,
    ) -> Self:  # fmt: skip
        """Read a file. FormatError if it is no model, or its tokenizer has another vocabulary.

        context: the most tokens of a text; None is the model's own limit
        prepare: checks what it can, and returns work to do while another thread reads the tokenizer
        """
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config, graph = model.build(file.metadata, shapes, context)
        # Checks read small files, and give up the interpreter lock: beside another thread's work
        # they would wait 5 ms for it each time.
        work = prepare(config, graph)
        read = start(lambda: Tokenizer.from_gguf(file.metadata))
        work()
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
    """Run work in a new thread, or in this one if the operating system has no more threads.

    Return a function that waits for the work and returns its result or raises its error.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)  # it is not joined if something else fails first
    try:
        thread.start()
    except RuntimeError:  # the operating system has no more threads
        run()

    def result() -> T:
        if thread.ident is not None:
            thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return result
