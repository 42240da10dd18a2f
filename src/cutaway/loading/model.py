"""From a model's file to what computes it.

Knows how a model may be run, which parts it has and that they must fit each other. Refuses to
know requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from cutaway import backends, hub, model
from cutaway._version import ARITHMETIC
from cutaway.backends import Backend
from cutaway.checks import check_choice, check_int
from cutaway.errors import FormatError, InputError
from cutaway.loading.meanwhile import meanwhile
from cutaway.loading.open import model_name, open_model, stat_model
from cutaway.model import Graph, ModelConfig
from cutaway.model.config import MAX_CONTEXT
from cutaway.progress import Bar, megabytes, say
from cutaway.resources import free_memory
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.weights import ModelFile

if TYPE_CHECKING:
    from cutaway.grammar import Compiler
    from cutaway.loading.identity import Identity
    from cutaway.offload import Offload
    from cutaway.text.thinking import Thinking

LEAST_KV_TOKENS = 8192
_SOON_S = 1.0  # nobody needs to be told how far what is over by then has come
QUANTIZE = ("q8_0", "q6_k", "q4_1", "q4_0")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is to be loaded, checked before anything is fetched.

    backend   how ops are computed, one of ``backends.BACKENDS``; None is the machine's best
    threads   how many threads compute; None takes as many as ``default_threads`` says
    context   tokens of prompt and output together; None takes the model's own
    kv_tokens tokens of all sequences together whose keys and values fit into memory; None takes the
              context's, or 8192 where that is more
    quantize  the format that matrices in F32, F16 or BF16 get while they are loaded, of QUANTIZE
    kv        how keys and values are stored, of backends.KV_FORMATS
    offload_folder  where weights are kept in a file, of which memory is only a cache

    Raises InputError naming the field.
    """

    backend: str | None = None
    threads: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    quantize: str | None = None
    kv: str = "f16"
    offload_folder: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("context", 2, MAX_CONTEXT),
            ("threads", 1, backends.MAX_THREADS),
            ("kv_tokens", backends.KV_BLOCK, MAX_CONTEXT),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_int(name, value, low, high))
        if self.backend is not None:
            check_choice("backend", self.backend, backends.BACKENDS)
        _check_quantize(self.quantize)
        check_kv(self.kv)
        if self.offload_folder is not None:
            from cutaway.offload import check_folder  # few models are larger than memory

            object.__setattr__(self, "offload_folder", check_folder(self.offload_folder))

    def tokens(self, longest: int) -> tuple[int, int]:
        """Of the context and of all keys and values, for a model whose own context is that long."""
        if self.context is not None:
            check_int("context", self.context, 2, longest)
        context = self.context or longest
        return context, self.kv_tokens or max(context, LEAST_KV_TOKENS)


def check_kv(kv: str) -> None:
    """InputError where keys and values cannot be stored so."""
    check_choice("kv", kv, backends.KV_FORMATS)


def _check_quantize(quantize: str | None) -> None:
    if quantize is not None:
        check_choice("quantize", quantize, QUANTIZE)


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
        read = meanwhile(lambda: Tokenizer.from_gguf(file.metadata))
        load(config, graph)
        tokenizer = read()
        rows = shapes[graph.ops[0].weights["weight"]][0]
        if rows != tokenizer.vocab_size:
            raise FormatError(
                f"the model has {rows} tokens and its tokenizer has {tokenizer.vocab_size}"
            )
        return cls(config, graph, tokenizer, sum(info.nbytes for info in file.tensors.values()))


class LoadedModel:
    """A model in memory, ready to run: what one ``LLM`` or one ``AsyncLLM`` is made of.

    name       of the model, as traces and answers report it
    config, graph, tokenizer, template  what its file says; template is None where it has none
    pooling    what it says of vectors of texts
    backend    computes its logits
    context    tokens that a sequence can have, prompt included
    kv_tokens  tokens of all sequences together whose keys and values fit, in whole KV blocks
    load_s     seconds that loading took
    """

    def __init__(self, path: Path, setup: Setup, *, progress: bool = False) -> None:
        """Load a file or folder. FormatError for a bad one, InputError where memory is full.

        progress: show on the terminal how far it is where that takes over a second
        """
        started = perf_counter()
        self.name = model_name(path, setup.quantize, setup.kv)
        self._path, self._stat, self._setup = path, stat_model(path), setup
        self._owner, self._lock, self._progress = "", Lock(), progress
        with open_as(path, setup.quantize, setup.threads) as file:
            try:
                self._load(file, setup, progress)
            except MemoryError as error:
                raise InputError(
                    f"{path.name} does not fit into memory with this context: lower context"
                ) from error
        self.load_s = perf_counter() - started

    @classmethod
    def open(
        cls, model: str | PathLike[str] | None = None, setup: Setup | None = None, *,
        progress: bool = True,
    ) -> Self:  # fmt: skip
        """Load a model by its name or path, fetched where it is not here yet.

        FetchError where it cannot be had.
        progress: show on the terminal how far a fetch is, and a load of over a second
        """
        path = hub.resolve(None if model is None else str(model), progress=progress)
        return cls(path, setup or Setup(), progress=progress)

    def _load(self, file: ModelFile, setup: Setup, progress: bool) -> None:
        self._backend: Backend | None = None

        def load(config: ModelConfig, graph: Graph) -> None:
            self.context, kv_tokens = setup.tokens(config.context_length)
            kv_blocks = -(-kv_tokens // backends.KV_BLOCK)
            self.kv_tokens = kv_blocks * backends.KV_BLOCK
            size = sum(info.nbytes for info in file.tensors.values())
            offload = self._offload(graph, kv_tokens)
            if offload is None:
                self._check_fits(size)
            with Bar(f"loading {self.name}", size, show=progress, after=_SOON_S) as bar:
                self._backend = backends.load(
                    setup.backend, graph, file,
                    kv_blocks=kv_blocks, context=self.context,
                    threads=setup.threads, kv=setup.kv, offload=offload, on_progress=bar.update,
                )  # fmt: skip

        self.parts = parts = Parts.read(file, setup.context, load)
        self.config, self.graph, self.tokenizer = parts.config, parts.graph, parts.tokenizer
        self.template = ChatTemplate.from_gguf(file.metadata, self.tokenizer)
        self.pooling = model.pooling_from_gguf(file.metadata)

    def _offload(self, graph: Graph, kv_tokens: int) -> "Offload | None":
        """Where the weights are kept, if not in memory."""
        if self._setup.offload_folder is None:
            return None
        from cutaway.offload import Offload

        kv = backends.kv_layout(graph, self._setup.kv).bytes_stored(kv_tokens)

        def tell(what: str) -> None:
            if self._progress:
                say(f"{self.name}: {what}")

        return Offload(Path(self._setup.offload_folder), kv, tell)

    def _check_fits(self, size: int) -> None:
        """InputError where the weights are more than the memory that can still be had.

        The system would end this process, or another, in the middle of the load.
        """
        memory = free_memory()
        if memory is not None and size > memory.free:
            raise InputError(
                f"{self.name} needs {megabytes(size)} of memory for its weights, and only "
                f"{megabytes(memory.free)} of {memory.whose} are free: end other programs, raise "
                "the limit, take a model of fewer parameters or of fewer bits a weight, or have "
                "its weights read from a disk (offload_folder, --offload-folder DIR)"
            )

    @property
    def backend(self) -> Backend:
        """What computes. InputError once it is closed."""
        if self._backend is None:
            raise InputError(f"{self.name} is closed: load the model again")
        return self._backend

    @cached_property
    def identity(self) -> "Identity":
        """SHA-256 of its weights and tokenizer; reads all of its file, once per version of it."""
        from cutaway.loading.identity import identify  # hashes are a few ms of a cold start

        identity = identify(self._path, self._stat, show=self._progress)
        return identity.loaded_as(self._setup.quantize, self._setup.kv)

    @property
    def arithmetic(self) -> str:
        """What computes, by name: equal names give equal bits from equal weights.

        Releases that compute the same have the same.
        """
        return f"cutaway-{ARITHMETIC}-{self.backend.name}"

    @property
    def computed_by(self) -> dict[str, str]:
        """What the bits of keys and values depend on beside the tokens, by what to call it.

        Of the settings ``context`` is one: positions of some models depend on it.
        """
        from hashlib import sha256  # not at every start

        ops = sha256(repr(self.graph.ops).encode()).hexdigest()
        return {
            "weights": self.identity.weights,
            "tokenizer": self.identity.tokenizer,
            "arithmetic": self.arithmetic,
            "layout of keys and values": str(self.backend.kv),
            "graph, which follows from context": ops[:16],
        }

    @cached_property
    def thinking(self) -> "Thinking | None":
        """How it writes thoughts before an answer; None where it has no words for them."""
        from cutaway.text.thinking import Thinking

        return Thinking.of(self.template, self.tokenizer) if self.template else None

    @cached_property
    def grammars(self) -> "Compiler":
        """Its compiler of grammars, which makes its tables when the first one comes."""
        from cutaway.grammar import Compiler

        return Compiler(self.tokenizer)

    def claim(self, owner: str) -> None:
        """Become the model of one owner; InputError where it has another.

        Two that step one backend would write into each other's memory.
        """
        with self._lock:
            if self._owner:
                raise InputError(
                    f"{self.name} belongs to {self._owner} already: use that, or load the model "
                    "again"
                )
            self._owner = owner

    def release(self) -> None:
        """Give up the claim, for the next owner."""
        self._owner = ""

    def close(self) -> None:
        """Let go of the weights, the threads and the KV cache."""
        self._backend = None

    def __reduce__(self) -> Any:
        raise InputError(
            f"{self.name}: a loaded model cannot be copied or sent to another process; load it "
            "there"
        )
