"""Loads a model: reads its file, and makes the backend that computes it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from cutaway._version import ARITHMETIC
from cutaway.base.arithmetic import PlainArithmetic, plainly
from cutaway.compute import backends, model
from cutaway.compute.backends import Backend, Computer, KVLayout
from cutaway.compute.loading.adapters import LoadedAdapters
from cutaway.compute.loading.open import model_name, stamp, stat_model
from cutaway.compute.loading.parts import Parts, Work, no_work, open_as
from cutaway.compute.loading.setup import Setup
from cutaway.compute.loading.weights import prepare_weights
from cutaway.compute.model import Graph, ModelConfig
from cutaway.errors import CutawayError, InputError
from cutaway.files import hub
from cutaway.files.weights import ModelFile
from cutaway.text import ChatTemplate

if TYPE_CHECKING:
    from cutaway.compute.backends.canvas import CanvasBackends
    from cutaway.compute.loading.adapter import Adapter
    from cutaway.compute.loading.identity import Identity
    from cutaway.text.grammar.compiler import GrammarCompiler
    from cutaway.text.thinking import Thinking
    from cutaway.text.thinking_switch import ThinkingSwitch


class LoadedModel:
    """A model in memory, ready to run; an ``LLM`` or an ``AsyncLLM`` owns one.

    name       the name that traces and answers report
    path       the path of the file or folder
    config, graph, tokenizer, template  what the file has; template is None if the file has none
    pooling    how texts become embeddings, as the file says
    backend    what computes the logits
    context    the most tokens of a sequence, prompt included
    kv_tokens  for how many tokens, of all sequences together, keys and values fit; in whole KV
               blocks
    load_s     how many seconds loading took
    elsewhere  what computes if the model is loaded without weights; the model's owner sets it
    adapter    the hash of the adapter; "" if there is none
    """

    context: int
    kv_tokens: int
    request_adapter = ""
    """The ``adapter`` of a ``Request``; "" for the adapter of all texts, or if there is none."""

    def __init__(
        self, path: Path, setup: Setup, *, progress: bool = False, weights: bool = True
    ) -> None:
        """Load a file or folder. FormatError if it is bad, InputError if memory is full.

        Raises CutawayError in a subinterpreter.

        progress: whether to show a progress bar on the terminal after a second
        weights: False reads everything but the weights, for a process that computes nothing
        """
        started = perf_counter()
        backends.check_native()
        self.name = model_name(path, setup.quantize, setup.kv)
        self.path, self._stat, self._setup = path, stat_model(path), setup
        self._owner, self._lock, self._progress = "", Lock(), progress
        self._weights = weights
        self._backend: Backend | None = None
        self._canvas: CanvasBackends | None = None
        self._canvas_bytes = 0  # that it takes beside the weights
        self._adapters = LoadedAdapters()
        self.elsewhere = Computer(setup.backend or backends.default(), "elsewhere", 0)
        with self.open_file() as file:
            self._read(file)
        self.load_s = perf_counter() - started

    @classmethod
    def open(
        cls, model: str | PathLike[str] | None = None, setup: Setup | None = None, *,
        progress: bool = True, weights: bool = True,
    ) -> Self:  # fmt: skip
        """Load a model by its name or path; fetch it if necessary, FetchError if that fails.

        progress, weights: see ``__init__``; progress also shows the fetch
        """
        path = hub.resolve(None if model is None else str(model), progress=progress)
        return cls(path, setup or Setup(), progress=progress, weights=weights)

    @contextmanager
    def open_file(self) -> Iterator[ModelFile]:
        """Open the model's file for the block; InputError if memory runs out in the block."""
        setup = self._setup
        with PlainArithmetic(), open_as(self.path, setup.quantize, setup.threads) as file:
            try:
                yield file
            except MemoryError as error:
                reason = " with this context: lower context"
                if isinstance(error, CutawayError):
                    reason = f": {error}"
                raise InputError(f"{self.path.name} does not fit into memory{reason}") from error

    def _read(self, file: ModelFile) -> None:
        def prepare(config: ModelConfig, graph: Graph) -> Work:
            self.context, kv_tokens = self._setup.tokens(config.context_length)
            self.kv_tokens = -(-kv_tokens // backends.KV_BLOCK) * backends.KV_BLOCK
            if config.attention == "canvas":
                from cutaway.compute.loading.canvas import canvas_bytes

                self._canvas_bytes = canvas_bytes(config, file, self._setup.backend)
            in_file = backends.weight_bytes(graph, file.tensors, self._setup.backend)
            self._weight_bytes = in_file + self._canvas_bytes
            self._adapters.read(self._setup, self.path, graph, config)
            if adapter := self._adapters.common:
                self.name += f"+{adapter.name}"
            if not self._weights:
                return no_work
            return self._prepare(config, graph, file, show=self._progress)

        self.parts = parts = Parts.read(file, self._setup.context, prepare)
        self.config, self.graph, self.tokenizer = parts.config, parts.graph, parts.tokenizer
        self.adapter = ""
        if common := self._adapters.common:
            self.graph, self.adapter = common.graph, common.sha256
        self.template = ChatTemplate.from_gguf(file.metadata, self.tokenizer)
        self.pooling = model.pooling_from_gguf(file.metadata, self.graph)

    def load(
        self, on_progress: Callable[[int], object] = lambda _done: None, *, show: bool = False
    ) -> None:
        """Load the weights of a model that was opened without them; ``close`` frees them.

        show: whether to show a progress bar on the terminal
        on_progress: is called with how many bytes are ready; an error that it raises ends the load
        Errors are those of ``__init__``, and InputError if the file has changed since its opening.
        """
        started = perf_counter()
        self._check_unchanged()
        with self.open_file() as file:
            self._check_unchanged()  # once the file is open, another one may take its name
            self._prepare(self.config, self.parts.graph, file, show=show, on_progress=on_progress)()
        self.elsewhere = self.computer
        self.load_s = perf_counter() - started

    def _check_unchanged(self) -> None:
        try:
            now = stat_model(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error
        if stamp(now) != stamp(self._stat):
            raise InputError(f"{self.path} has changed since it was opened: open the model again")

    def _prepare(
        self, config: ModelConfig, graph: Graph, file: ModelFile, *, show: bool,
        on_progress: Callable[[int], object] = lambda _done: None,
    ) -> Work:  # fmt: skip
        """Check that the weights fit, and return what loads them."""
        load_backend = prepare_weights(
            graph, file, self._setup, self.name, context=self.context, kv_tokens=self.kv_tokens,
            beside=self._canvas_bytes, writes=config.is_causal, tells=self._progress,
            show=show, on_progress=on_progress,
        )  # fmt: skip

        def load() -> None:
            backend = load_backend()
            if config.attention == "canvas":
                from cutaway.compute.loading.canvas import load_canvas

                self._canvas = load_canvas(config, backend, file)
            self._backend = self._adapters.put_on(backend)

        return load

    def with_adapter(self, adapter: str) -> "LoadedModel":
        """Return the model with this adapter, with a name and an identity of its own; "": itself.

        InputError for an adapter that was not loaded.
        """
        if adapter == "":
            return self
        return AdaptedModel(self, adapter, self._adapters.find(adapter))

    def with_task(self, task: str) -> "LoadedModel":
        """Return the model with the adapter of one of its tasks. InputError for another task."""
        return AdaptedModel(self, task, self._adapters.find_task(task, self.name))

    @property
    def tasks(self) -> Mapping[str, str]:
        """Task with an adapter in the model's folder (jina v3) -> the prefix of its texts."""
        return self._adapters.tasks

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that requests can ask for."""
        return self._adapters.names

    def adapted_backend(self, sha256: str) -> Backend:
        """Return the backend with an adapter; InputError if model or adapter was unloaded."""
        _ = self.backend
        return self._adapters.backend(sha256)

    @plainly
    def open_adapter(self, name: str, at: str | PathLike[str]) -> "Adapter":
        """Read one more adapter, for ``add_adapter``; InputError if it does not fit this model."""
        return self._adapters.open(name, at, self._setup, self.parts.graph, self.config)

    @plainly
    def add_adapter(self, name: str, adapter: "Adapter") -> Backend:
        """Let requests name an adapter; return its backend. The model must not be computing."""
        return self._adapters.add(name, adapter, self.backend)

    def remove_adapter(self, name: str) -> bool:
        """Remove a name; return whether this freed its adapter, which may have another name."""
        return self._adapters.remove(name)

    @property
    def is_loaded(self) -> bool:
        """Whether the model's weights are in this process."""
        return self._backend is not None

    @property
    def memory(self) -> int:
        """Return the bytes of the weights, and of all keys and values that there is room for.

        Offloaded weights do not count: the operating system takes back their memory when needed.
        """
        on_disk = self._setup.offload_folder is not None
        weights = self._adapters.nbytes + (0 if on_disk else self._weight_bytes)
        return weights + self.kv.bytes_stored(self.kv_tokens)

    @property
    def backend(self) -> Backend:
        """The backend; InputError if no weights are loaded, or if the model was closed."""
        if self._backend is None:
            raise InputError(
                f"{self.name} is closed: load the model again" if self._weights else
                f"{self.name} was opened without its weights, and nothing can be computed here: "
                "load the model"
            )  # fmt: skip
        return self._backend

    @property
    def canvas(self) -> "CanvasBackends | None":
        """What computes a canvas, if that takes more than the backend; see ``backend``."""
        _ = self.backend
        return self._canvas

    @property
    def computer(self) -> Computer:
        """What computes, here or elsewhere."""
        if self._weights or self.is_loaded:
            return Computer(self.backend.name, self.backend.tier, self.backend.threads)
        return self.elsewhere

    @property
    def kv(self) -> KVLayout:
        """How keys and values are stored."""
        if self._weights or self.is_loaded:
            return self.backend.kv
        return backends.kv_layout(self.graph, self._setup.kv, self._setup.backend)

    @cached_property
    def identity(self) -> "Identity":
        """The SHA-256 of the weights and of the tokenizer; a file's first use reads all of it."""
        from cutaway.compute.loading.identity import identify  # hashes are a few ms of a cold start

        identity = identify(self.path, self._stat, show=self._progress)
        identity = identity.loaded_as(self._setup.quantize, self._setup.kv)
        return identity.with_adapter(self.adapter) if self.adapter else identity

    @property
    def arithmetic(self) -> str:
        """A name of arithmetic and backend: where it is equal, equal weights give equal bits."""
        return f"cutaway-{ARITHMETIC}-{backends.bits_of(self.computer.name)}"

    @property
    def system_fingerprint(self) -> str:
        """A name of arithmetic and weights: where it is equal, a request gives equal bits."""
        return f"{self.arithmetic}-{self.identity.weights[:12]}"

    @property
    def computed_by(self) -> dict[str, str]:
        """Return all that the bits of keys and values depend on besides the tokens, by name.

        The graph is included, since some models choose their rotations by ``context``.
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
        """How the model marks thoughts before an answer; None if its template has no marks."""
        from cutaway.text.chat_probe import thinking_of

        return thinking_of(self.template, self.tokenizer) if self.template else None

    @cached_property
    def thinking_switch(self) -> "ThinkingSwitch":
        """The settings of thinking that the chat template takes; the model must have a template."""
        from cutaway.text.thinking_switch import ThinkingSwitch

        assert self.template is not None
        return ThinkingSwitch(self.template, self.thinking)

    @cached_property
    def grammars(self) -> "GrammarCompiler":
        """The compiler of grammars, which makes its tables for the first grammar."""
        from cutaway.text.grammar.compiler import GrammarCompiler

        return GrammarCompiler(self.tokenizer)

    def claim(self, owner: str) -> None:
        """Take the model for one owner; InputError if the model has another owner.

        Two owners that ran steps on one backend would overwrite each other's KV cache.
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
        """Free the weights, the threads and the KV cache."""
        self._backend = self._canvas = None
        self._adapters.close()

    def __reduce__(self) -> Any:
        raise InputError(
            f"{self.name}: a loaded model cannot be copied or sent to another process; load it "
            "there"
        )


class AdaptedModel(LoadedModel):
    """A view of a model with the adapter that a request names.

    Only the model itself is loaded, claimed and closed. The view reads from the model all that the
    adapter does not change.
    """

    def __init__(self, model: LoadedModel, name: str, adapter: "Adapter") -> None:
        self._model, self.name = model, f"{model.name}+{name}"
        self.graph, self.adapter = adapter.graph, adapter.sha256
        self.request_adapter = adapter.sha256

    def with_adapter(self, adapter: str) -> LoadedModel:
        """See ``LoadedModel``. InputError for any adapter: there cannot be a second one."""
        if adapter:
            raise InputError(
                "adapter", f": {self.name} has one already: name it of the model itself"
            )
        return self

    def with_task(self, task: str) -> LoadedModel:  # noqa: ARG002
        """Raise InputError: a task would be a second adapter."""
        raise InputError("task", f": {self.name} has an adapter already: name one of the two")

    def close(self) -> None:
        """Do nothing: the owner closes the model itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._model, name)

    @property
    def backend(self) -> Backend:
        """See ``LoadedModel``."""
        return self._model.adapted_backend(self.adapter)

    @property
    def identity(self) -> "Identity":
        """See ``LoadedModel``."""
        return self._model.identity.with_adapter(self.adapter)

    @property
    def thinking(self) -> "Thinking | None":
        """See ``LoadedModel``."""
        return self._model.thinking

    @property
    def grammars(self) -> "GrammarCompiler":
        """See ``LoadedModel``."""
        return self._model.grammars
