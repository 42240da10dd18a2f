"""A trace of one sequence: how it was set up, its steps, and how it ended.

Knows how the words of the engine and its request become records. Refuses to know who reads
the text, and what the file looks like.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from cutaway import __version__
from cutaway.backends import Backend
from cutaway.completion import chain_as_data
from cutaway.engine import Sequence, TokenStep
from cutaway.errors import InputError
from cutaway.identity import Identity
from cutaway.options import Options
from cutaway.text import Tokenizer
from cutaway.trace import End, Head, Parent, Token, TraceWriter


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
    """Writes the steps of a sequence that has none yet."""

    def __init__(
        self,
        path: Path,
        sequence: Sequence,
        options: Options,
        machine: Machine,
        *,
        prompt: str | None = None,
        parent: Parent | None = None,
    ) -> None:
        """prompt: the text, where one was given; parent: what this run is a fork of."""
        if sequence.look is None or sequence.output_token_ids:
            raise InputError("trace: ask for candidates, and record before the first step")
        self._sequence = sequence
        head = _head(sequence, options, machine, prompt, parent)
        self._writer = TraceWriter(path, head, machine.tell)

    def step(self, step: TokenStep) -> None:
        """Record a step, and the end where it is the last. CutawayError if it cannot be written."""
        self._writer.step(step)
        if step.finish_reason:
            self.end()

    def end(self) -> None:
        """Record why the sequence ended; done once."""
        if not self._writer.closed:
            self._writer.end(_end(self._sequence))


def _head(
    sequence: Sequence,
    options: Options,
    machine: Machine,
    prompt: str | None,
    parent: Parent | None,
) -> Head:
    backend, run = machine.backend, sequence.run
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
        params=options.settings(sequence.seed),
        seed=sequence.seed,
        candidates=run.candidates,
        watch=run.watch,
        end_ids=tuple(machine.tokenizer.end_ids),
        kv_bytes=backend.kv_bytes,
        parent=parent,
    )


def _end(sequence: Sequence) -> End:
    done, cached = len(sequence.output_token_ids), sequence.num_cached_tokens or 0
    prompt = len(sequence.prompt_token_ids)
    return End(
        reason=str(sequence.finish_reason),
        matched=sequence.matched,
        usage={"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": done},
        fingerprint=f"{sequence.fingerprint:016x}",
        text=sequence.flush(),
        error=str(sequence.error) if sequence.error else None,
        speculation=asdict(sequence.speculation),
    )
