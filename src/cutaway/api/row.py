"""What a text's last row gave, read beside whatever else is written.

Knows that what comes before the row is computed as any prompt is, so that others go on. Refuses to
know what is read.
"""

from collections.abc import Mapping, Sequence

from cutaway.api.runner import EndListener, Runner
from cutaway.engine import Hold, Request, Row
from cutaway.engine.row import is_ready, read_row
from cutaway.errors import CutawayError


def row(
    runner: Runner, token_ids: Sequence[int], names: Sequence[str], firsts: Mapping[int, int]
) -> Row:
    """See ``LLM.row``."""
    listener = EndListener()
    request = Request(prompt_token_ids=tuple(token_ids), decoder=Hold())

    with runner.running(request, listener) as sequence:

        def read() -> Row | None:  # others may have taken its memory since
            ready = is_ready(sequence)
            return read_row(runner.engine, sequence, names, firsts) if ready else None

        while True:
            runner.wait(lambda: listener.ended or is_ready(sequence))
            if listener.ended:
                raise listener.ended.error or CutawayError("the model was closed meanwhile")
            if (found := runner.call(read)) is not None:
                return found
