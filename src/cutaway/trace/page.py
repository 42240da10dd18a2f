"""A trace for people: as one HTML file, and as a few lines of markup for a notebook.

Knows what of a run is told. Refuses to know how it is drawn: ``cutaway.web`` does.
"""

from collections.abc import Iterator, Sequence

from cutaway.trace.figures import bits, chain_label, percent, probability
from cutaway.trace.html import Chip, Markup, legend, strip, style, tag
from cutaway.trace.lines import line
from cutaway.trace.read import Trace
from cutaway.trace.record import Head, Step, Token
from cutaway.web.bundle import viewer


def to_html(trace: Trace) -> str:
    """A document that shows the whole run and opens from disk, as UTF-8; it fetches nothing."""
    records: Sequence[Head | Token | Step] = [trace.head, *trace.tokens.values(), *trace.steps]
    lines = [line(record.to_json()) for record in records]
    lines += [line(trace.end.to_json())] if trace.end else []
    return viewer(b"".join(lines).decode(), f"cutaway: {trace.head.model}, seed {trace.head.seed}")


def snippet(trace: Trace) -> str:
    """The text by surprise, for a notebook; without scripts."""
    return tag("div", style(), _facts(trace), strip(_chips(trace)), legend(), class_="cutaway")


def _facts(trace: Trace) -> Markup:
    head = trace.head
    ended = trace.end.reason if trace.end else "cut short, or still going on"
    by, count = f"{head.backend} {head.tier}", f"{len(trace.steps)} steps"
    parts = [f"seed {head.seed}", chain_label(head.chain), by, count, ended]
    return tag("p", " · ".join(parts), class_="legend")


def _chips(trace: Trace) -> Iterator[Chip]:
    for step in trace.steps:
        title = (
            f"step {step.index}: {percent(probability(step.logprob))}, "
            f"{bits(step.logprob):.2f} bits, rank {step.rank}, {step.source}"
        )
        yield Chip(trace.name_of(step.token_id), bits(step.logprob), title)
