"""From a model's file to what computes it.

Knows how a model may be run, which parts it has and that they must fit each other. Refuses to
know requests.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cutaway import backends, model
from cutaway.backends import Backend
from cutaway.checks import check_int
from cutaway.engine import DraftModel, Policy
from cutaway.errors import FormatError, InputError
from cutaway.loading.open import model_name, open_model
from cutaway.model import Graph, ModelConfig
from cutaway.model.config import MAX_CONTEXT
from cutaway.text import Tokenizer
from cutaway.weights import ModelFile

LEAST_KV_TOKENS = 8192
QUANTIZE = ("q8_0", "q6_k", "q4_1", "q4_0")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is to run: the keywords of ``LLM``, checked. InputError for a bad one."""

    backend: str | None
    threads: int | None
    context: int | None
    kv_tokens: int | None
    prefix_cache: bool
    max_running: int
    max_waiting: int | None
    quantize: str | None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("context", 2, MAX_CONTEXT),
            ("threads", 1, backends.MAX_THREADS),
            ("kv_tokens", backends.KV_BLOCK, MAX_CONTEXT),
            ("max_waiting", 0, None),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_int(name, value, low, high))
        check_int("max_running", self.max_running, 1, 1024)
        if self.backend is not None and self.backend not in backends.BACKENDS:
            names = ", ".join(backends.BACKENDS)
            raise InputError(f"backend must be one of {names}, not {self.backend!r}")
        _check_quantize(self.quantize)

    def tokens(self, longest: int) -> tuple[int, int]:
        """Of the context and of all keys and values, for a model whose own context is that long."""
        if self.context is not None:
            check_int("context", self.context, 2, longest)
        context = self.context or longest
        return context, self.kv_tokens or max(context, LEAST_KV_TOKENS)

    def policy(self) -> Policy:
        """How steps are filled."""
        return Policy(
            prefix_cache=self.prefix_cache,
            max_running=self.max_running,
            max_waiting=self.max_waiting,
        )


def _check_quantize(quantize: str | None) -> None:
    if quantize is not None and quantize not in QUANTIZE:
        raise InputError(f"quantize must be one of {', '.join(QUANTIZE)}, not {quantize!r}")


def open_as(path: Path, quantize: str | None, threads: int | None = None) -> ModelFile:
    """A model's file; quantize: with its matrices in that format, one of QUANTIZE.

    InputError for another format, or where they are quantised already.
    """
    _check_quantize(quantize)
    file = open_model(path)
    if quantize is None:
        return file
    from cutaway.weights.quantised import QuantisedFile, refuse_quantised

    refuse_quantised(file, "leave quantize out")
    return QuantisedFile(file, quantize.upper(), threads=threads)


@dataclass(frozen=True)
class Parts:
    """What a file says of its model. nbytes: of all weights, as they are stored."""

    config: ModelConfig
    graph: Graph
    tokenizer: Tokenizer
    nbytes: int

    @classmethod
    def read(cls, file: ModelFile, context: int | None = None) -> Self:
        """FormatError where the model and its tokenizer are not of one vocabulary.

        context: the tokens that texts may have; None is as many as the model can.
        """
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config, graph = model.build(file.metadata, shapes, context)
        tokenizer = Tokenizer.from_gguf(file.metadata)
        if graph.ops[-1].out.width != tokenizer.vocab_size:
            raise FormatError(
                f"the model predicts {graph.ops[-1].out.width} tokens and its tokenizer has "
                f"{tokenizer.vocab_size}"
            )
        return cls(config, graph, tokenizer, sum(info.nbytes for info in file.tensors.values()))


def draft_model(path: Path, target: Parts, backend: Backend, context: int) -> DraftModel:
    """The model in a file, to draft tokens for another, on its backend's threads.

    context: how many tokens the target's texts can have. InputError where the tokens differ, or
    memory is full.
    """
    with open_model(path) as file:
        parts = Parts.read(file, context)
        if not parts.tokenizer.has_tokens_of(target.tokenizer):
            raise InputError(
                f"speculate: {model_name(path)} has other tokens than the model it is to guess "
                "for; a draft model must have the same"
            )
        context = min(parts.config.context_length, context)
        try:
            computes = backends.load(
                backend.name, parts.graph, file, kv_blocks=backend.kv_blocks, context=context,
                beside=backend,
            )  # fmt: skip
        except MemoryError as error:
            raise InputError(
                f"speculate: {path.name} does not fit into memory beside the model: lower context"
            ) from error
    return DraftModel(computes, context, parts.nbytes / target.nbytes)
