"""A trace as one HTML file. How a run is drawn is for ``cutaway.web``."""

from collections.abc import Sequence

from cutaway.trace.catalogue import catalogue
from cutaway.trace.lines import line
from cutaway.trace.read import Trace
from cutaway.trace.record import Head, Step, Token
from cutaway.web.bundle import viewer


def to_html(trace: Trace) -> str:
    """A document that shows the whole run and opens from disk, as UTF-8; it fetches nothing."""
    records: Sequence[Head | Token | Step] = [trace.head, *trace.tokens.values(), *trace.steps]
    lines = [line(record.to_json()) for record in records]
    lines += [line(trace.end.to_json())] if trace.end else []
    title = f"cutaway: {trace.head.model}, seed {trace.head.seed}"
    return viewer(b"".join(lines).decode(), title, catalogue())
