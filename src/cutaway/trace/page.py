"""A trace as one HTML file. ``cutaway.trace.web`` draws it."""

from collections.abc import Iterator, Mapping

from cutaway.trace.catalogue import catalogue
from cutaway.trace.passes import pass_to_json
from cutaway.trace.read import Trace
from cutaway.trace.record import Json
from cutaway.trace.sinks import line
from cutaway.trace.steps import step_to_json
from cutaway.trace.web.bundle import viewer


def to_html(trace: Trace, looks: Mapping[int, bytes] | None = None) -> str:
    """A document that shows the whole run and opens from disk, as UTF-8; it fetches nothing.

    looks: by step, files of ``cutaway.lab.inside.page_arrays``; other steps need the model
    """
    records = [trace.head.to_json(), *(token.to_json() for token in trace.tokens.values())]
    records += _made(trace)
    records += [trace.end.to_json()] if trace.end else []
    title = f"cutaway: {trace.head.model}, seed {trace.head.seed}"
    return viewer(b"".join(map(line, records)).decode(), title, catalogue(), looks or {})


def _made(trace: Trace) -> Iterator[Json]:
    """Passes and steps in the order of the file: a block's steps follow its last pass."""
    steps, following = list(trace.steps), [*trace.passes[1:], None]
    for made, after in zip(trace.passes, following, strict=False):
        yield pass_to_json(made)
        if after is None or after.block != made.block:
            while steps and steps[0].position < made.block[1]:
                yield step_to_json(steps.pop(0))
    yield from map(step_to_json, steps)
