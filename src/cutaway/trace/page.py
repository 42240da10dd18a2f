"""Traces as one HTML file. ``cutaway.trace.web`` draws it."""

from collections.abc import Iterator, Mapping, Sequence

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_int
from cutaway.errors import InputError
from cutaway.trace.catalogue import catalogue
from cutaway.trace.guide import Guide, ShownRun
from cutaway.trace.passes import pass_to_json
from cutaway.trace.read import Trace
from cutaway.trace.record import Json
from cutaway.trace.sinks import line
from cutaway.trace.steps import step_to_json
from cutaway.trace.web.bundle import BundledRun, viewer


@plainly
def to_html(trace: Trace, looks: Mapping[int, bytes] | None = None) -> str:
    """A document that shows the whole run and opens from disk, as UTF-8; it fetches nothing.

    looks: by step, files of ``cutaway.features.inside.page_arrays``; other steps need the model
    """
    title = f"cutaway: {trace.head.model}, seed {trace.head.seed}"
    return runs_to_html([ShownRun(trace, title, looks or {})], title)


@plainly
def runs_to_html(runs: Sequence[ShownRun], title: str, guide: Guide | None = None) -> str:
    """As ``to_html``, of several runs, with a guide beside them. InputError where there is no run,
    or where the guide shows none of them."""
    if not runs:
        raise InputError("runs: a page shows one or more")
    for point in guide.points if guide else ():
        check_int(f"the run of {point.text!r:.40}", point.run, 1, len(runs))
    known = dict[str, int]()  # the numbers of the runs so far
    shown = []
    for number, run in enumerate(runs, 1):
        parent = run.trace.head.parent
        of, at = (known.get(parent.trace), parent.step) if parent else (None, 0)
        shown.append(BundledRun(_lines(run.trace), run.name, of, at))
        known.setdefault(run.trace.sha256, number)
    looks = {
        f"{number} {step}": look
        for number, run in enumerate(runs, 1)
        for step, look in run.looks.items()
    }
    return viewer(shown, title, catalogue(), looks, guide.to_json() if guide else None)


def _lines(trace: Trace) -> str:
    """The file, written anew."""
    records = [trace.head.to_json(), *(token.to_json() for token in trace.tokens.values())]
    records += _made(trace)
    records += [trace.end.to_json()] if trace.end else []
    return b"".join(map(line, records)).decode()


def _made(trace: Trace) -> Iterator[Json]:
    """Passes and steps in the order of the file: a block's steps follow its last pass."""
    steps, following = list(trace.steps), [*trace.passes[1:], None]
    for made, after in zip(trace.passes, following, strict=False):
        yield pass_to_json(made)
        if after is None or after.block != made.block:
            while steps and steps[0].position < made.block[1]:
                yield step_to_json(steps.pop(0))
    yield from map(step_to_json, steps)
