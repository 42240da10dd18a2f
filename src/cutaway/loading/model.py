"""From a model's file to what computes it.

Knows which parts a model has and that they must fit each other. Refuses to know requests.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from os import PathLike
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from cutaway import backends, hub, model
from cutaway._version import ARITHMETIC
from cutaway.backends import Backend, Computer, KVLayout
from cutaway.errors import FormatError, InputError
from cutaway.loading.meanwhile import meanwhile
from cutaway.loading.open import model_name, open_model, stat_model
from cutaway.loading.setup import Setup, check_quantize
from cutaway.model import Graph, ModelConfig
from cutaway.progress import Bar, megabytes, say
from cutaway.resources import free_memory
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.weights import ModelFile

if TYPE_CHECKING:
    from cutaway.grammar import Compiler
    from cutaway.loading.identity import Identity
    from cutaway.offload import Offload
    from cutaway.text.thinking import Thinking

_SOON_S = 1.0  # nobody needs to be told how far what is over by then has come


def open_as(path: Path, quantize: str | None, threads: int | None = None) -> ModelFile:
    """A model's file; quantize: with its matrices in that format, one of QUANTIZE.

    InputError for another format, or where they are quantised already.
    """
    check_quantize(quantize)
    file = open_model(path)
    if quantize is None:
        return file
    from cutaway.weights.quantised import QuantisedFile, refuse_quantised

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
        read = meanwhile(lambda: Tokenizer.from_gguf(file.metadata))
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


class LoadedModel:
    """A model in memory, ready to run: what one ``LLM`` or one ``AsyncLLM`` is made of.

    name       of the model, as traces and answers report it
    config, graph, tokenizer, template  what its file says; template is None where it has none
    pooling    what it says of vectors of texts
    backend    computes its logits
    context    tokens that a sequence can have, prompt included
    kv_tokens  tokens of all sequences together whose keys and values fit, in whole KV blocks
    load_s     seconds that loading took
    elsewhere  what computes, where it is loaded without weights: told by whoever knows
    """

    def __init__(
        self, path: Path, setup: Setup, *, progress: bool = False, weights: bool = True
    ) -> None:
        """Load a file or folder. FormatError for a bad one, InputError where memory is full.

        progress: show on the terminal how far it is where that takes over a second
        weights: False reads what the file says, for a process in which nothing is computed
        """
        started = perf_counter()
        self.name = model_name(path, setup.quantize, setup.kv)
        self._path, self._stat, self._setup = path, stat_model(path), setup
        self._owner, self._lock, self._progress = "", Lock(), progress
        self._weights = weights
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
        progress: bool = True, weights: bool = True,
    ) -> Self:  # fmt: skip
        """Load a model by its name or path, fetched where it is not here yet.

        FetchError where it cannot be had.
        progress: show on the terminal how far a fetch is, and a load of over a second
        weights: False reads what the file says, for a process in which nothing is computed
        """
        path = hub.resolve(None if model is None else str(model), progress=progress)
        return cls(path, setup or Setup(), progress=progress, weights=weights)

    def _load(self, file: ModelFile, setup: Setup, progress: bool) -> None:
        self._backend: Backend | None = None
        self.elsewhere = Computer(setup.backend or backends.default(), "elsewhere", 0)

        def load(config: ModelConfig, graph: Graph) -> None:
            self.context, kv_tokens = setup.tokens(config.context_length)
            kv_blocks = -(-kv_tokens // backends.KV_BLOCK)
            self.kv_tokens = kv_blocks * backends.KV_BLOCK
            if not self._weights:
                return
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
            raise InputError(
                f"{self.name} is closed: load the model again" if self._weights else
                f"{self.name} was opened without its weights, and nothing can be computed here: "
                "load the model"
            )  # fmt: skip
        return self._backend

    @property
    def computer(self) -> Computer:
        """What computes, be it elsewhere."""
        if self._weights:
            return Computer(self.backend.name, self.backend.tier, self.backend.threads)
        return self.elsewhere

    @property
    def kv(self) -> KVLayout:
        """How keys and values are stored."""
        if self._weights:
            return self.backend.kv
        return backends.kv_layout(self.graph, self._setup.kv, self._setup.backend)

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
        return f"cutaway-{ARITHMETIC}-{self.computer.name}"

    @property
    def system_fingerprint(self) -> str:
        """What computes and from which weights: with equal ones a request has equal bits."""
        return f"{self.arithmetic}-{self.identity.weights[:12]}"

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
            "layout of keys and values": str(self.kv),
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
