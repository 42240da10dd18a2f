"""A text's prefix, pinned in the KV cache while rows after it are computed; and its last row.

The prefix is computed as any prompt is, beside other sequences.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cutaway.engine import PinPrefix, Row, RunParams
from cutaway.engine import Sequence as EngineSequence
from cutaway.engine.row import is_ready, read_row
from cutaway.errors import CutawayError
from cutaway.requests.owner import EndListener
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions


def row(
    llm: SyncLLM,
    token_ids: Sequence[int],
    names: Sequence[str],
    firsts: Mapping[int, int],
    interventions: "BoundInterventions | None" = None,
) -> Row:
    """See ``LLM.row``."""
    with pinned(llm, token_ids, interventions=interventions) as (sequence, wait):

        def read() -> Row | None:  # others may have taken its memory since
            ready = is_ready(sequence)
            return read_row(llm.engine, sequence, names, firsts) if ready else None

        while (found := llm.owner.call(read)) is None:
            wait()
        return found


@contextmanager
def pinned(
    llm: SyncLLM,
    token_ids: Sequence[int],
    priority: int = 0,
    interventions: "BoundInterventions | None" = None,
) -> Iterator[tuple[EngineSequence, Callable[[], None]]]:
    """Keys and values of a text, but for its last token, until others need the memory.

    They are there when the block begins; what it is given waits until they are there again.
    """
    listener, run = EndListener(), RunParams(priority=priority)
    request = llm.request(token_ids, decoder=PinPrefix(), run=run, interventions=interventions)
    with llm.owner.running(request, listener) as sequence:

        def wait() -> None:
            llm.owner.wait(lambda: listener.ended or is_ready(sequence))
            if listener.ended:
                raise listener.ended.error or CutawayError("the model was closed")

        wait()
        yield sequence, wait
