"""LLM: load a model, score texts and write them, for any number of threads."""

from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Self

from cutaway.api.text_writer import TextWriter
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Engine, Policy
from cutaway.errors import InputError
from cutaway.requests.base import ModelName, make_engine
from cutaway.requests.owner import EngineOwner, Runner
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.compute.loading.adapter import Adapter


class LLM(TextWriter):
    """A model, ready to write. Any number of threads may use it: their texts join one batch.

    model     an alias such as "smollm2" (the default), a path to a .gguf file or to a folder of
              transformers, hf:org/repo, or a ``LoadedModel``, which excludes the next nine keywords
    backend   how ops are computed; see cutaway.compute.backends.BACKENDS
    threads   how many threads compute; None takes a machine's performance cores, as many as the
              container may use
    context   tokens of prompt and output together, 2 … the model's own; None takes the model's
    kv_tokens     tokens of all sequences together whose keys and values fit into memory, which
                  grows with the tokens in use; None takes the context, or 8192 if that is more
    quantize  q8_0, q4_k_m or another format of ``cutaway quantize``, for matrices that the file has
              in F32, F16 or BF16; they are quantised while they are loaded
    kv        the format of keys and values: f16, or q8_0, q5_1 or q4_0, which take less memory and
              change logits a little; "q8_0,q4_0" gives keys the first and values the second
    offload_folder  a folder on a disk, for a model larger than memory: the weights are in a
              nameless file there, deleted with this process; memory keeps as many as it can
    lora      an adapter for all texts, FILE or FILE:SCALE: a GGUF file or a folder of PEFT;
              "FILE:SCALE,FILE:SCALE" adds several, in this order
    adapters  name -> adapter, written as for ``lora``, for requests that name it (adapter="name")
    prefix_cache  keep computed keys and values for prompts that begin alike; changes no token
    cache_dir     a folder that keeps them on a disk too, for later processes and for others that
                  run now; whoever can read it can find out the prompts
    cache_size    bytes that the folder's files may take, 10 GB by default; the least recently used
                  are removed first
    max_num_seqs  sequences in one step, 1 … 1024
    max_waiting   sequences in the queue, 0 or more; None: no limit
    step_ms       milliseconds that a step should take at most if it reads a prompt and continues
                  other texts; the prompt has half of the step or more; 0: no target; changes no
                  token
    progress  show long work on the terminal (a first fetch, many prompts)

    Closing it, or leaving its ``with`` block, frees the memory. Raises InputError for a bad
    argument, FormatError for a bad file, FetchError if a model cannot be fetched.
    """

    _INTERNAL = TextWriter._INTERNAL | {
        "add", "answers", "draft", "engine", "hand_over", "head", "last_rows", "load_draft",
        "logits_at", "owner", "request", "row", "start", "streams", "take_back",
    }  # fmt: skip

    def __init__(
        self,
        model: ModelName | LoadedModel | None = None,
        *,
        backend: str | None = None,
        threads: int | None = None,
        context: int | None = None,
        kv_tokens: int | None = None,
        quantize: str | None = None,
        kv: str = "f16",
        offload_folder: str | PathLike[str] | None = None,
        lora: str | PathLike[str] | None = None,
        adapters: Mapping[str, str | PathLike[str]] | None = None,
        prefix_cache: bool = True,
        cache_dir: str | PathLike[str] | None = None,
        cache_size: int | None = None,
        max_num_seqs: int = 64,
        max_waiting: int | None = None,
        step_ms: float = 0,
        progress: bool = True,
    ) -> None:
        setup = Setup(
            backend=backend, threads=threads, context=context, kv_tokens=kv_tokens,
            quantize=quantize, kv=kv, offload_folder=offload_folder, lora=lora,
            adapters={} if adapters is None else adapters,
        )  # fmt: skip
        policy = Policy(
            prefix_cache=prefix_cache, max_num_seqs=max_num_seqs, max_waiting=max_waiting,
            step_ms=step_ms,
        )  # fmt: skip
        store = None
        if cache_dir is not None or cache_size is not None:
            from cutaway.requests.store_settings import StoreSettings  # hashlib is a few ms

            store = StoreSettings.read(cache_dir, cache_size, prefix_cache=prefix_cache)
        if not isinstance(model, LoadedModel):
            model = LoadedModel.open(model, setup, progress=progress)
        elif setup != Setup():
            raise InputError("the model is loaded already: say how to load it where it is loaded")
        model.claim("an LLM")
        self._runner = Runner(make_engine(model, policy, store))
        super().__init__(model, self._runner, progress=progress)

    def with_adapter(self, adapter: str) -> "LLM":
        """See ``SyncLLM``."""
        model = self.model.with_adapter(adapter)
        same = model is self.model
        return self if same else SharedLLM(model, self.owner, progress=self.progress)

    def load_adapter(self, name: str, at: str | PathLike[str]) -> None:
        """Load one more adapter, which requests can then name; running texts do not change.

        at: as for ``adapters``. InputError if it cannot be read, or the name is taken.
        """
        self._check_whole()
        adapter = self.model.open_adapter(name, at)
        self.owner.call(partial(self._add_adapter, name, adapter))

    def _add_adapter(self, name: str, adapter: "Adapter") -> None:
        self.engine.backends[adapter.sha256] = self.model.add_adapter(name, adapter)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. InputError while texts are written with it, or if it is not loaded."""
        self._check_whole()
        self.owner.call(partial(self._remove_adapter, name))

    def _remove_adapter(self, name: str) -> None:
        adapter = self.model.with_adapter(name).request_adapter
        texts = [*self.engine.running, *self.engine.waiting]
        if using := sum(text.request.adapter == adapter for text in texts):
            raise InputError(
                "adapter",
                f": {using} texts are being written with {name}: unload it once they ended",
            )
        if self.model.remove_adapter(name):
            del self.engine.backends[adapter]

    def _check_whole(self) -> None:
        if self.model.request_adapter:
            raise InputError("adapter", f": {self.name} has one already: ask the model itself")

    # -- the end -----------------------------------------------------------------------------

    def hand_over(self) -> Engine:
        """Give the engine and the model to another owner; InputError while texts are written."""
        engine = self._runner.hand_over(
            f"{self.name} was given to an AsyncLLM: use that, close it, or load the model again"
        )
        self.model.release()
        return engine

    def take_back(self, engine: Engine) -> None:
        """Own the engine again after ``hand_over``."""
        self.model.claim("an LLM")
        self._runner.take_back(engine)

    def close(self) -> None:
        """End all texts and free the memory."""
        self._runner.close(f"{self.name} is closed: load the model again")
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedLLM(LLM):
    """An LLM on an engine that another object owns and steps: closing it closes nothing."""

    def __init__(self, model: LoadedModel, owner: EngineOwner, *, progress: bool) -> None:
        SyncLLM.__init__(self, model, owner, progress=progress)

    def hand_over(self) -> Engine:
        """Raise InputError: the engine belongs to another object."""
        raise InputError(f"{self.name} has no engine of its own: give the model itself")

    def close(self) -> None:
        """Do nothing: the engine belongs to another object."""
