"""Rows computed after a prefix that is pinned in the KV cache meanwhile.

The prefix is computed like any prompt, beside other sequences.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cutaway.compute.backends import Logits
from cutaway.engine import Embed, PinPrefix, PinWhole, Request, Row, RunParams, Score
from cutaway.engine import Sequence as EngineSequence
from cutaway.engine.loop.pinned import (
    Floats,
    WholeText,
    is_ready,
    read_row,
    read_state,
    read_text,
    read_whole,
)
from cutaway.errors import CutawayError
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import each_ended
from cutaway.requests.stream import LogitsReader
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions

LATER = RunParams(priority=1)
"""Of a prefix that others go before."""
_RUN = RunParams()


def row(
    llm: SyncLLM,
    token_ids: Sequence[int],
    names: Sequence[str],
    firsts: Mapping[int, int],
    interventions: "BoundInterventions | None" = None,
) -> Row:
    """See ``LLM.row``."""
    with pinned(llm, token_ids, interventions=interventions) as (sequence, wait):

        def read() -> Row | None:  # None: other texts have taken its memory since
            ready = is_ready(sequence)
            return read_row(llm.engine, sequence, names, firsts) if ready else None

        while (found := llm.owner.call(read)) is None:
            wait()
        return found


def text_tensors(
    llm: SyncLLM,
    token_ids: Sequence[int],
    names: Sequence[str],
    interventions: "BoundInterventions | None" = None,
) -> Mapping[str, Floats]:
    """See ``LLM.tensors``."""
    with pinned(llm, token_ids, interventions=interventions) as (sequence, wait):

        def read() -> Mapping[str, Floats] | None:
            return read_text(llm.engine, sequence, names) if is_ready(sequence) else None

        while (found := llm.owner.call(read)) is None:
            wait()
        return found


def text_state(
    llm: SyncLLM, token_ids: Sequence[int], interventions: "BoundInterventions | None" = None
) -> Floats:
    """The recurrent state after a text, of all layers: (numbers,), as ``state_layout`` has it."""
    with pinned(llm, [*token_ids, token_ids[-1]], interventions=interventions) as (sequence, wait):

        def read() -> Floats | None:
            return read_state(llm.engine, sequence) if is_ready(sequence) else None

        while (found := llm.owner.call(read)) is None:
            wait()
        return found


def whole_text(
    llm: SyncLLM, request: Request, names: Sequence[str], layers: Sequence[int]
) -> WholeText:
    """All rows of a text that ``Embed`` reads, in one step; the keys and values of some layers."""
    assert isinstance(request.decoder, Embed)
    whole = replace(request, decoder=PinWhole(**vars(request.decoder)))
    with _pinned(llm, whole) as (sequence, wait):

        def read() -> WholeText | None:
            return read_whole(llm.engine, sequence, names, layers) if is_ready(sequence) else None

        while (found := llm.owner.call(read)) is None:
            wait()
        return found


def last_rows(
    llm: SyncLLM,
    like: Sequence[int],
    texts: Iterable[tuple[Sequence[int], "BoundInterventions | None"]],
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, Logits]]:
    """See ``LLM.last_rows``."""
    vocab = llm.tokenizer.vocab_size
    jobs = (
        (
            llm.request(ids, decoder=Score(logits_from=len(ids) - 1), interventions=made),
            LogitsReader(1, vocab, len(ids) - 1),
        )
        for ids, made in texts
    )
    with pinned(llm, like, LATER):
        for index, reader in each_ended(llm.owner, jobs, stopped):
            yield index, reader.logits()[0]


@contextmanager
def pinned(
    llm: SyncLLM,
    token_ids: Sequence[int],
    run: RunParams = _RUN,
    interventions: "BoundInterventions | None" = None,
) -> Iterator[tuple[EngineSequence, Callable[[], None]]]:
    """Keep a text's keys and values, its last token's excepted, until others need the memory.

    They are computed when the block begins. Yields the sequence, and a function that waits until
    they are computed again.
    """
    request = llm.request(token_ids, decoder=PinPrefix(), run=run, interventions=interventions)
    with _pinned(llm, request) as found:
        yield found


@contextmanager
def _pinned(llm: SyncLLM, request: Request) -> Iterator[tuple[EngineSequence, Callable[[], None]]]:
    listener = EndListener()
    with llm.owner.running(request, listener) as sequence:

        def wait() -> None:
            llm.owner.wait(lambda: listener.has_ended() or is_ready(sequence))
            if listener.ended:
                raise listener.ended.error or CutawayError("the model was closed")

        wait()
        yield sequence, wait
