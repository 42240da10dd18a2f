"""A trace of one sequence: how it was set up, its steps, and how it ended.

Knows how the words of the engine and its request become records. Refuses to know who reads
the text, and what the file looks like.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike

from cutaway._version import __version__
from cutaway.api.completion import chain_as_data, held_back
from cutaway.api.options import Options
from cutaway.backends import Backend
from cutaway.engine import Sequence, TokenStep
from cutaway.engine.fingerprint import START
from cutaway.errors import InputError
from cutaway.loading.identity import Identity
from cutaway.text import Tokenizer
from cutaway.trace import End, Head, Parent, Token, TraceSink, TraceWriter

Begin = Callable[[Head, Callable[[int], Token]], TraceSink]
"""Begins a trace with its head and with what tells of a token id."""


@dataclass(frozen=True)
class Machine:
    """What a trace says of the model and of what runs it."""

    model: str
    identity: Identity
    backend: Backend
    tokenizer: Tokenizer

    def tell(self, token_id: int) -> Token:
        """What a token id stands for."""
        data = self.tokenizer.token_bytes(token_id)
        return Token(token_id, data, None if data else self.tokenizer.token_name(token_id))


class Recorder:
    """Tells the steps of a sequence that has none yet, and its end."""

    def __init__(
        self,
        into: str | PathLike[str] | Begin,
        sequence: Sequence,
        options: Options,
        machine: Machine,
        *,
        prompt: str | None = None,
        parent: Parent | None = None,
    ) -> None:
        """into: a file, or what begins a trace elsewhere; prompt: the text, where one was given;
        parent: what this run is a fork of.
        """
        if not sequence.run.observe.stages or sequence.output_token_ids:
            raise InputError("trace: ask for candidates, and record before the first step")
        self._sequence, self._steps = sequence, list[TokenStep]()
        self._token_bytes = machine.tokenizer.token_bytes
        head = _head(sequence, options, machine, prompt, parent)
        begin = into if callable(into) else partial(TraceWriter, into)
        self._sink = begin(head, machine.tell)

    def step(self, step: TokenStep) -> None:
        """Record a step, and the end where it is the last. CutawayError if it cannot be written."""
        self._sink.step(step)
        self._steps.append(step)
        if step.finish_reason:
            self.end()

    def end(self) -> None:
        """Record why the text ended that is on record; done once."""
        if not self._sink.closed:
            self._sink.end(_end(self._sequence, self._steps, self._token_bytes))


def _head(
    sequence: Sequence,
    options: Options,
    machine: Machine,
    prompt: str | None,
    parent: Parent | None,
) -> Head:
    backend, observe = machine.backend, sequence.run.observe
    params = options.settings(sequence.seed)
    params["watch"] = params.pop("track")  # as version 1 of the format has it
    return Head(
        cutaway=__version__,
        model=machine.model,
        weights=machine.identity.weights,
        tokenizer=machine.identity.tokenizer,
        backend=backend.name,
        tier=backend.tier,
        threads=backend.threads,
        vocab_size=machine.tokenizer.vocab_size,
        prompt=prompt,
        prompt_token_ids=sequence.prompt_token_ids,
        chain=tuple(chain_as_data(sequence)),
        params=params,
        seed=sequence.seed,
        candidates=observe.top,
        watch=observe.track,
        end_ids=tuple(machine.tokenizer.end_ids),
        kv_bytes=backend.kv.bytes_per_token,
        parent=parent,
    )


def _end(sequence: Sequence, steps: list[TokenStep], token_bytes: Callable[[int], bytes]) -> End:
    """Of the steps on record: the engine, which another thread may turn, can be ahead of them."""
    prompt, cached = len(sequence.prompt_token_ids), sequence.num_cached_tokens or 0
    last = steps[-1] if steps else None
    unread = "error" if sequence.error else "aborted"
    return End(
        reason=str((last and last.finish_reason) or unread),
        matched=last.matched if last else None,
        usage={"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": len(steps)},
        fingerprint=f"{last.fingerprint if last else START:016x}",
        text=held_back(steps, token_bytes),
        error=str(sequence.error) if sequence.error else None,
        speculation=asdict(sequence.speculation),
    )
