"""The Python API: one class that loads a model and writes text with it.

Knows how the rooms fit together. Refuses to know HTTP and terminals.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral
from os import PathLike
from time import perf_counter
from typing import Any, overload
from weakref import WeakValueDictionary, finalize

import numpy as np

from cutaway import backends, hub, model
from cutaway.completion import Completion, Stopwatch, Usage, chain_as_data
from cutaway.engine import Engine, Limits, TokenStep
from cutaway.engine import Sequence as EngineSequence
from cutaway.engine.fingerprint import START
from cutaway.errors import FormatError, InputError
from cutaway.model.config import MAX_CONTEXT
from cutaway.options import Options, parse_options
from cutaway.sampling import check_int, derive_seed
from cutaway.sampling.params import check_ids
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.weights import GGUFFile

__all__ = ["LLM", "Completion", "Stream"]

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model, ready to write.

    model     an alias such as "smollm2" (the default), a path to a .gguf file, or hf:org/repo
    backend   how ops are computed; see cutaway.backends.BACKENDS
    threads   how many threads compute; None takes what the machine has
    context   tokens of prompt and answer together, 2 … the model's own; None takes the model's
    progress  show on the terminal what takes long (a first fetch)

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
        progress: bool = True,
    ) -> None:
        if context is not None:  # what can be refused before a fetch is
            context = check_int("context", context, 2, MAX_CONTEXT)
        if threads is not None:
            threads = check_int("threads", threads, 1, backends.MAX_THREADS)
        if backend is not None and backend not in backends.BACKENDS:
            names = ", ".join(backends.BACKENDS)
            raise InputError(f"backend must be one of {names}, not {backend!r}")
        path = hub.resolve(None if model is None else str(model), progress=progress)
        started = perf_counter()
        self.name = path.stem
        with GGUFFile(path) as file:
            try:
                self._load(file, backend, threads, context)
            except MemoryError as error:
                raise InputError(
                    f"{path.name} does not fit into memory with this context: lower context"
                ) from error
        self.load_s = perf_counter() - started
        self._open: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        self._abandoned: deque[EngineSequence] = deque()

    def _load(
        self, file: GGUFFile, backend: str | None, threads: int | None, context: int | None
    ) -> None:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        self.config, self.graph = model.build(file.metadata, shapes)
        self.tokenizer = Tokenizer.from_gguf(file.metadata)
        self.template = ChatTemplate.from_gguf(file.metadata, self.tokenizer)
        vocab_size = self.graph.ops[-1].out.width
        if vocab_size != self.tokenizer.vocab_size:
            raise FormatError(
                f"the model predicts {vocab_size} tokens and its tokenizer has "
                f"{self.tokenizer.vocab_size}"
            )
        if context is not None:
            check_int("context", context, 2, self.config.context_length)
        context = context or self.config.context_length
        self.backend = backends.load(
            backend or backends.default(), self.graph, file,
            kv_blocks=-(-context // backends.KV_BLOCK), context=context, threads=threads,
        )  # fmt: skip
        limits = Limits(
            context_length=context,
            vocab_size=vocab_size,
            end_ids=frozenset(self.tokenizer.end_ids),
        )
        self.engine = Engine(self.backend, limits, self.tokenizer.token_bytes)

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
        Raises InputError for an unknown option or a value out of range.
        """
        parsed = parse_options(options)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        many = _is_list(prompt) and not _is_prompt(prompt)
        with ExitStack() as stack:  # whatever goes wrong, no sequence is left in the engine
            streams = [
                [stack.enter_context(s) for s in self._streams(p, parsed)]
                for p in (prompt if many else [prompt])
            ]
            answers = [[s.finish() for s in samples] for samples in streams]
        flat: list[Any] = answers if parsed.n > 1 else [samples[0] for samples in answers]
        return flat if many else flat[0]

    def stream(self, prompt: Prompt, **options: Any) -> "Stream":
        """Continue a prompt, yielding each TokenStep as it is made. Options as for generate."""
        parsed = parse_options(options)
        if parsed.n != 1:
            raise InputError("n must be 1 to stream; generate takes several")
        return next(self._streams(prompt, parsed))

    def chat(self, messages: Iterable[Message], **options: Any) -> Completion:
        """Answer a conversation: messages of {"role": …, "content": …}. Options as for generate."""
        return self.generate(self.chat_prompt(messages), **options)

    def chat_prompt(self, messages: Iterable[Message]) -> list[int]:
        """The token ids of a conversation in the model's own template, ready to be answered.

        Special tokens come from the template alone; in a message they are ordinary text.
        """
        if self.template is None:
            raise InputError("this model has no chat template; use generate with a plain prompt")
        return self.template.encode(list(messages), self.tokenizer)

    def _streams(self, prompt: Prompt, options: Options) -> Iterator["Stream"]:
        """The n samples of a prompt; the first chooses the seed that the others derive from."""
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        if not _is_prompt(prompt):
            raise InputError(f"prompt must be a string or a list of token ids, not {prompt!r:.40}")
        if options.special and not isinstance(prompt, str):
            raise InputError("special says how to read a text, and the prompt is token ids")
        ids = self.tokenize(prompt, special=options.special) if isinstance(prompt, str) else prompt
        first = Stream(self, ids, options, options.sampling.seed)
        yield first
        for i in range(1, options.n):
            yield Stream(self, ids, options, derive_seed(first.sequence.seed, i))

    # -- reading -----------------------------------------------------------------------------

    def logits(self, token_ids: Sequence[int]) -> backends.Logits:
        """Teacher-forced logits, float32 (n, vocab): row i predicts the token at i + 1."""
        self._end_abandoned()
        return self.engine.score(token_ids)

    def tokenize(self, text: str, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Token ids of a text. Special tokens are parsed only with special=True."""
        return self.tokenizer.encode(text, special=special, add_bos=add_bos)

    def detokenize(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids; special=True shows control tokens by name."""
        return self.tokenizer.decode(check_ids("ids", ids), special=special)

    def _turn(self) -> None:
        """One turn of the loop; every sequence's step goes to its stream."""
        self._end_abandoned()
        for step in self.engine.step():
            if (stream := self._open.get(step.sequence_id)) is not None:
                stream.receive(step)

    def _end_abandoned(self) -> None:
        """End what nobody can read any more. Not at once: that may be in the midst of a step."""
        while self._abandoned:
            self.engine.abort(self._abandoned.popleft())


def _is_list(prompt: Any) -> bool:
    """Whether it is a list of ids or prompts; bytes are a sequence of numbers, but not ids."""
    raw = (str, bytes, bytearray, memoryview)
    return isinstance(prompt, Sequence) and not isinstance(prompt, raw)


def _is_prompt(prompt: Any) -> bool:
    listed = _is_list(prompt) and all(isinstance(token_id, Integral) for token_id in prompt)
    return listed or isinstance(prompt, str)


class Stream(Iterator[TokenStep]):
    """The steps of one sequence as they are made; ``completion()`` when they have ended.

    Closing it (or leaving its ``with`` block, or dropping it) early ends the sequence as
    "aborted". ``held_back`` is the text that such an end releases.
    """

    def __init__(self, llm: LLM, prompt: Sequence[int], options: Options, seed: int | None) -> None:
        params = replace(options.sampling, seed=seed)
        self._llm, self._options, self._watch = llm, options, Stopwatch()
        self.sequence = llm.engine.add(
            prompt, params, options.stops, kv_cache=options.kv_cache, ledger=options.ledger
        )
        self.steps: list[TokenStep] = []
        self.held_back = ""
        self.stop_asked = self._closed = False
        self._arrived: deque[TokenStep] = deque()
        llm._open[self.sequence.id] = self
        finalize(self, llm._abandoned.append, self.sequence).atexit = False

    def receive(self, step: TokenStep) -> None:
        """Take a step of this sequence from the loop, which may be turned by another stream."""
        self._watch.token()
        self._arrived.append(step)

    def __next__(self) -> TokenStep:
        while not self._arrived or self.stop_asked or self._closed:
            if self.stop_asked or self._closed or self.sequence.finish_reason:
                self.close()
                raise StopIteration
            self._llm._turn()
        self.steps.append(self._arrived.popleft())
        return self.steps[-1]

    def stop(self) -> None:
        """Ask for the end: the next turn of the loop is not begun. Safe in a signal handler."""
        self.stop_asked = True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sequence if it has not ended, and free what it held."""
        self._llm.engine.abort(self.sequence)
        self._llm._open.pop(self.sequence.id, None)
        self._closed = True
        if not (self.steps and self.steps[-1].finish_reason):
            to_bytes = self._llm.tokenizer.token_bytes
            whole = b"".join(to_bytes(step.token_id) for step in self.steps)
            shown = sum(len(step.text) for step in self.steps)
            self.held_back = whole.decode("utf-8", "replace")[shown:]

    def finish(self) -> Completion:
        """Run to the end and return the completion."""
        for _ in self:
            pass
        return self.completion()

    def completion(self) -> Completion:
        """What there is so far; of a stream that was not read to its end, the part that was."""
        sequence, usage = self.sequence, self._usage()
        last = self.steps[-1] if self.steps else None
        unread = "aborted" if self._closed else "unfinished"
        return Completion(
            model=self._llm.name,
            prompt_token_ids=sequence.prompt_token_ids,
            token_ids=tuple(step.token_id for step in self.steps),
            text="".join(step.text for step in self.steps) + self.held_back,
            finish_reason=str((last and last.finish_reason) or unread),
            matched=last.matched if last else None,
            usage=usage,
            params=self._options.in_force(sequence.seed),
            params_source=self._options.sources,
            chain=chain_as_data(sequence),
            seed=sequence.seed,
            timing=self._watch.timing(
                self._llm.load_s, usage.prompt_tokens, usage.completion_tokens
            ),
            fingerprint=f"{last.fingerprint if last else START:016x}",
            steps=tuple(self.steps),
        )

    def _usage(self) -> Usage:
        return Usage(len(self.sequence.prompt_token_ids), 0, len(self.steps))
