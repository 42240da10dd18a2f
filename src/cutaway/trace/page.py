"""A trace as one HTML file. How a run is drawn is for ``cutaway.web``."""

from collections.abc import Mapping

from cutaway.errors import InputError
from cutaway.trace.catalogue import catalogue
from cutaway.trace.lines import line
from cutaway.trace.read import Trace
from cutaway.trace.steps import step_to_json
from cutaway.web.bundle import viewer


def to_html(trace: Trace, looks: Mapping[int, bytes] | None = None) -> str:
    """A document that shows the whole run and opens from disk, as UTF-8; it fetches nothing.

    looks: by step, what ``cutaway.inside.packed.to_bytes`` gives; of others the model is needed

    InputError where the trace is of a canvas, of which the page shows nothing.
    """
    if trace.head.decoder:
        raise InputError(
            "html: the page shows texts that were written from left to right, and this trace is of "
            "a canvas: 'cutaway trace play' shows it"
        )
    records = [trace.head.to_json(), *(token.to_json() for token in trace.tokens.values())]
    records += map(step_to_json, trace.steps)
    records += [trace.end.to_json()] if trace.end else []
    title = f"cutaway: {trace.head.model}, seed {trace.head.seed}"
    return viewer(b"".join(map(line, records)).decode(), title, catalogue(), looks or {})
