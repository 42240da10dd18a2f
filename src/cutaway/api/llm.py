"""The Python API: one class that loads a model and writes text with it.

Knows how the rooms fit together. Refuses to know HTTP and terminals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

from cutaway import backends, hub
from cutaway.api.breakers import with_breakers
from cutaway.api.bulk import Results
from cutaway.api.completion import Completion
from cutaway.api.options import Options, parse_options
from cutaway.api.prompts import Prompt, check_prompt, one_or_many
from cutaway.api.stream import Stream, SyncEngine
from cutaway.api.writing import Loaded
from cutaway.checks import check_ids
from cutaway.engine import Engine, Limits
from cutaway.engine.scoring import score
from cutaway.errors import CutawayError, InputError
from cutaway.loading.model import Parts, Setup, draft_model, open_as
from cutaway.loading.open import model_name, stat_model
from cutaway.progress import Bar, texts_done
from cutaway.sampling import derive_seed
from cutaway.text import ChatTemplate
from cutaway.weights import ModelFile

if TYPE_CHECKING:
    from cutaway.api.recording import Machine

__all__ = ["LLM", "Completion", "Results", "Stream"]

Message = Mapping[str, Any]


class LLM:
    """A model, ready to write.

    model     an alias such as "smollm2" (the default), a path to a .gguf file or to a
              folder of transformers, or hf:org/repo
    backend   how ops are computed; see cutaway.backends.BACKENDS
    threads   how many threads compute; None takes what the machine has
    context   tokens of prompt and answer together, 2 … the model's own; None takes the model's
    kv_tokens     tokens of all texts together whose keys and values fit into memory, which grows
                  with those in use; None takes the context's, or 8192 where that is more
    prefix_cache  keep what was computed, for prompts that begin alike; changes no token
    max_running   texts in one step, 1 … 1024
    max_waiting   texts in the queue, 0 or more; None has no limit
    quantize  q8_0, q6_k, q4_1 or q4_0: matrices of a file in F32, F16 or BF16 as they are loaded
    progress  show on the terminal what takes long (a first fetch, many prompts)

    Raises InputError for a bad argument, FormatError for a bad file, FetchError where a
    model cannot be fetched. Not safe to use from several threads at once.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        backend: str | None = None,
        threads: int | None = None,
        context: int | None = None,
        kv_tokens: int | None = None,
        prefix_cache: bool = True,
        max_running: int = 64,
        max_waiting: int | None = None,
        quantize: str | None = None,
        progress: bool = True,
    ) -> None:
        setup = Setup(  # refuses before anything is fetched
            backend=backend, threads=threads, context=context, kv_tokens=kv_tokens,
            prefix_cache=prefix_cache, max_running=max_running, max_waiting=max_waiting,
            quantize=quantize,
        )  # fmt: skip
        path = hub.resolve(None if model is None else str(model), progress=progress)
        started = perf_counter()
        self.name = model_name(path, quantize)
        self._progress, self._draft = progress, ""
        self._path, self._stat, self._quantize = path, stat_model(path), quantize
        with open_as(path, quantize, setup.threads) as file:
            try:
                self._load(file, setup)
            except MemoryError as error:
                raise InputError(
                    f"{path.name} does not fit into memory with this context: lower context"
                ) from error
        self.load_s = perf_counter() - started
        self.loaded = Loaded(self.name, self.load_s, self.machine, self.engine.token_bytes)
        self._sync = SyncEngine(self.engine, self.loaded)
        self._machine: Machine | None = None

    def _load(self, file: ModelFile, setup: Setup) -> None:
        self._parts = parts = Parts.read(file, setup.context)
        self.config, self.graph, self.tokenizer = parts.config, parts.graph, parts.tokenizer
        self.template = ChatTemplate.from_gguf(file.metadata, self.tokenizer)
        context, kv_tokens = setup.tokens(self.config.context_length)
        self.backend = backends.load(
            setup.backend, self.graph, file,
            kv_blocks=-(-kv_tokens // backends.KV_BLOCK), context=context, threads=setup.threads,
        )  # fmt: skip
        limits = Limits(
            context_length=context,
            vocab_size=self.tokenizer.vocab_size,
            end_ids=frozenset(self.tokenizer.end_ids),
        )
        token_bytes = lru_cache(8192)(self.tokenizer.token_bytes)
        self.engine = Engine(self.backend, limits, token_bytes, setup.policy())

    # -- writing -----------------------------------------------------------------------------

    @overload
    def generate(self, prompt: Prompt, **options: Any) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[str], **options: Any) -> list[Completion]: ...
    @overload
    def generate(self, prompt: Sequence[Sequence[int]], **options: Any) -> list[Completion]: ...
    def generate(self, prompt: Any, **options: Any) -> Any:
        """Continue a prompt, or each of a list of prompts in one batch.

        prompt: text, or token ids (a NumPy array too); a list of either gives a list of
        Completions. An empty list is a prompt of no tokens, and refused.
        options: temperature, top_k, top_p, min_p, seed, stop, max_tokens, … (SamplingParams,
        StopParams and Options name them all). With n > 1 each prompt gives a list of n.
        trace="run.jsonl" records the run; of several texts the second is in run.2.jsonl, and so on.
        Raises InputError for an unknown option or a value out of range.
        """
        parsed = self.parse(options)
        prompts, many = one_or_many(prompt)
        traces = parsed.traces(len(prompts))
        with ExitStack() as stack:  # whatever goes wrong, no sequence is left in the engine
            texts = [
                [stack.enter_context(s) for s in self._streams(p, parsed, traces)] for p in prompts
            ]
            streams = [s for samples in texts for s in samples]
            show = self._progress and len(streams) > 1
            with Bar("generating", len(streams), show=show, figures=texts_done) as bar:
                self._sync.run(streams, bar.update)
            answers = [[s.finish() for s in samples] for samples in texts]
        flat: list[Any] = answers if parsed.n > 1 else [samples[0] for samples in answers]
        return flat if many else flat[0]

    def generate_each(self, requests: Iterable[Any], **options: Any) -> Results:
        """Many requests in one batch: (index, result) of each as it ends, in any order.

        requests: prompts, or (prompt, options) pairs whose own options go before the common
        ones. They are taken as there is room, at most about two batches ahead, so there may be
        any number. A CutawayError among them stands for a request that could not be read.
        A result is what generate returns, a list of n where n > 1, or the CutawayError that
        it would raise: the others go on. Closing the iterator early aborts what runs.
        Raises InputError for a bad common option.
        """
        if not isinstance(requests, Iterable) or isinstance(requests, (str, bytes)):
            raise InputError("requests must be an iterable of prompts; generate takes one")
        common = parse_options(options)
        if common.trace is not None:
            raise InputError("trace: name a file of its own in the options of each request")
        if common.draft is not None:
            self.load_draft(common.draft)
        start = partial(self._start, options)
        return Results(self._sync, requests, start, 2 * self.engine.scheduler.policy.max_running)

    def _start(self, common: Mapping[str, Any], request: Any) -> list[Stream]:
        """Queue one of many requests."""
        if isinstance(request, CutawayError):
            raise request
        paired = (
            isinstance(request, tuple) and len(request) == 2 and isinstance(request[1], Mapping)
        )
        prompt, own = request if paired else (request, {})
        options = self.parse({**common, **own})
        if options.draft not in (None, self._draft):
            raise InputError("speculate: name the draft model among the common options")
        return list(self._streams(prompt, options))

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Continue a prompt, yielding each TokenStep as it is made. Options as for generate."""
        parsed = self.parse(options)
        if parsed.n != 1:
            raise InputError("n must be 1 to stream; streams and generate take several")
        return next(self._streams(prompt, parsed))

    def streams(self, prompt: Prompt, **options: Any) -> list[Stream]:
        """A Stream for each of n samples, which run in one batch whichever is read."""
        return list(self._streams(prompt, self.parse(options)))

    def chat(self, messages: Iterable[Message], **options: Any) -> Completion:
        """Answer a conversation: messages of {"role": …, "content": …}. Options as for generate."""
        return self.generate(self.chat_prompt(messages), **options)

    def chat_prompt(self, messages: Iterable[Message]) -> list[int]:
        """The token ids of a conversation in the model's own template, ready to be answered.

        Special tokens come from the template alone; in a message they are ordinary text.
        """
        if self.template is None:
            raise InputError("this model has no chat template; use generate with a plain prompt")
        return self.template.encode(list(messages), self.tokenizer, self._check_length)

    def parse(
        self,
        given: Mapping[str, Any],
        server: Mapping[str, Any] | None = None,
        *,
        observed: bool = False,
    ) -> Options:
        """As parse_options; a trace always tells of the end tokens: "why?" is asked of it."""
        given = with_breakers(given, self.tokenizer)
        parsed = parse_options(given, server, observed=observed)
        if parsed.trace is None and not observed:
            return parsed
        return parsed.tracking(self.tokenizer.end_ids)

    def read_prompt(self, prompt: Prompt, options: Options) -> list[int]:
        """The token ids of a prompt; InputError where it is none."""
        prompt = check_prompt(prompt)
        if isinstance(prompt, str):
            self._check_length(prompt)
            return self.tokenize(prompt, special=options.special)
        if options.special:
            raise InputError("special says how to read a text, and the prompt is token ids")
        return list(prompt)

    def notes(self, prompt: Prompt, ids: list[int], options: Options) -> tuple[str, ...]:
        """What may be wrong with a prompt that was read as these ids: see ``Completion``."""
        return self.tokenizer.notes(ids, str(prompt) if options.special else None)

    def _check_length(self, text: str) -> None:
        """TooLongError for a prompt that must be too long: reading megabytes takes a minute."""
        fewest, limits = self.tokenizer.min_tokens(text), self.engine.limits
        if fewest > limits.longest_prompt:
            raise limits.too_long(f"at least {fewest}")

    def _streams(
        self, prompt: Prompt, options: Options, traces: Iterator[Path] | None = None
    ) -> Iterator[Stream]:
        """The n samples of a prompt; the first chooses the seed that the others derive from.

        traces: where theirs go, if those of other prompts are to be in the same place
        """
        ids = self.read_prompt(prompt, options)
        if options.draft is not None:
            self.load_draft(options.draft)
        traces = traces or options.traces(1)
        text = prompt if isinstance(prompt, str) else None
        first: Stream | None = None
        for i in range(options.n):
            seed = derive_seed(first.sequence.seed, i) if first else options.sampling.seed
            stream = Stream(self._sync, ids, options, seed, leader=first)
            stream.notes = self.notes(prompt, ids, options)
            first = first or stream
            if options.trace is not None:
                stream.record(next(traces), prompt=text)
            yield stream

    def load_draft(self, name: str) -> None:
        """Load the model that guesses, unless it is the one that is there.

        InputError where texts run, or the model cannot guess for this one.
        """
        if self._draft == name:
            return
        self._sync.end_abandoned()
        if self.engine.running or self.engine.waiting:
            raise InputError("speculate: another draft model cannot be loaded while texts run")
        path = hub.resolve(name, progress=self._progress)
        context = self.engine.limits.context_length
        self.engine.speculator.draft = draft_model(path, self._parts, self.backend, context)
        self._draft = name

    def machine(self) -> "Machine":
        """What a trace says of this model. Hashes its file, unless that was done before."""
        from cutaway.api.recording import Machine
        from cutaway.loading.identity import identify

        if self._machine is None:
            identity = identify(self._path, self._stat)
            if self._quantize is not None:
                identity = identity.quantised(self._quantize)
            self._machine = Machine(self.name, identity, self.backend, self.tokenizer)
        return self._machine

    # -- reading -----------------------------------------------------------------------------

    def logits(self, token_ids: Sequence[int], start: int = 0) -> backends.Logits:
        """Teacher-forced logits, float32 (n, vocab): row i predicts the token at i + 1.

        start: of which position the first row is; those before it are computed and not told.
        CutawayError where open streams leave no room for their keys and values.
        """
        self._sync.end_abandoned()
        return score(self.engine, token_ids, start)

    def tokenize(self, text: str, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Token ids of a text. Special tokens are parsed only with special=True."""
        return self.tokenizer.encode(text, special=special, add_bos=add_bos)

    def detokenize(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids; special=True shows control tokens by name."""
        return self.tokenizer.decode(check_ids("ids", ids), special=special)
