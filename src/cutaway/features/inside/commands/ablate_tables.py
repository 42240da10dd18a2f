"""What ``cutaway trace ablate`` prints: the text, tinted by each part's effect, and a table."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cutaway.cli.terminal.drawing import PLAIN, Line, Style, clip, joined, table, width, wrap
from cutaway.cli.terminal.tokens import quoted
from cutaway.features.inside import Ablation
from cutaway.features.inside.ablate import AblatedPart
from cutaway.trace.figures import in_bits, percent, phrase, probability

Text = Callable[[Sequence[int]], str]
"""What tokens add to the text, or their name."""

_MOST = 24  # lines of a table that could have thousands
_TEXT = 24  # cells of a part that are shown
_BITS = 8  # of a part that has the strongest tint
_HOW = {
    "delete": "deleted",
    "knock_out": "not seen by what follows",
    "other": "replaced by another token",
}


def lines(done: Ablation, text: Text, style: Style, cells: int) -> list[str]:
    """All of it, fit for a terminal of so many cells."""
    token, rival = (quoted(text([one])) for one in (done.token, done.rival))
    first = (
        f"step {done.step}: {token}, {percent(probability(done.logprob))}, compared with {rival}, "
        f"{percent(probability(done.rival_logprob))}"
    )
    tried = f"{len(done.parts)} of {done.total} {done.by}s, each {_HOW[done.how]}"
    row = f"{done.row_hash:016x}"
    last = phrase("same row" if done.is_as_run else "other row", row=row)
    body = [
        *_strip(done, text, style, max(cells, 2)),
        "",
        *_table(done, text, style),
        *textwrap.wrap(phrase("not because"), max(cells, 20)),
    ]
    said = body if done.parts else ["Nothing was done in time."]
    within = partial(textwrap.wrap, width=max(cells, 20))
    return [*within(first), *within(tried), "", *said, "", *within(last)]


# -- the text --------------------------------------------------------------------------------


def _strip(done: Ablation, text: Text, style: Style, cells: int) -> Iterator[str]:
    """The text in lines; below each, where there is no colour, a line of heights."""
    for row in wrap(_characters(done, text, style), cells):
        runs = joined(row)
        line: Line = [(part, PLAIN if share is None else style.tint(share)) for part, share in runs]
        yield style.render(line, cells).rstrip()
        if not style.colour:
            heights = (share for part, share in runs for _ in range(width(part)))
            yield style.spark(heights).rstrip()


def _characters(done: Ablation, text: Text, style: Style) -> Iterator[tuple[str, float | None]]:
    """Each with the share of its tint; None for what was not tried, or has no effect."""
    at, ids = 0, done.token_ids
    for part in sorted(done.parts, key=lambda part: part.start):
        share = in_bits(max(part.effect, 0.0)) / _BITS
        yield from ((c, None) for c in style.text(text(ids[at : part.start])))
        yield from ((c, share or None) for c in style.text(text(part.token_ids)))
        at = part.stop
    yield from ((c, None) for c in style.text(text(ids[at:])))


# -- the table -------------------------------------------------------------------------------


def _table(done: Ablation, text: Text, style: Style) -> list[str]:
    ordered = sorted(done.parts, key=lambda part: -abs(part.effect))
    head = (
        "position",
        done.by,
        *(["instead"] if done.how == "other" else []),
        "weight",
        "attribution",
    )
    rows = [_row(done, part, text, style) for part in ordered[:_MOST]]
    made = table([(*head, "log p lost", "margin lost", "drawn"), *rows])
    if rest := ordered[_MOST:]:
        least, most = (f(part.effect for part in rest) for f in (min, max))
        made.append(f"the other {len(rest)}: log p lost from {least:+.3f} to {most:+.3f}")
    if any(part.drawn is None for part in done.parts):
        made.append("The chain of this run cannot be repeated here, so nothing is drawn.")
    return made


def _row(done: Ablation, part: AblatedPart, text: Text, style: Style) -> tuple[str, ...]:
    last = part.stop - 1
    place = str(part.start) if part.start == last else f"{part.start}-{last}"
    changed = part.drawn not in (None, done.drawn)
    instead = [_short(text(part.instead), style)] if done.how == "other" else []
    return (
        place.rjust(8), _short(text(part.token_ids), style), *instead, percent(part.weight),
        f"{part.attribution:+.3f}", f"{part.effect:+10.3f}", f"{part.margin:+9.3f}",
        _short(text([part.drawn or 0]), style) if changed else "",
    )  # fmt: skip


def _short(text: str, style: Style) -> str:
    shown = quoted(text)
    return shown if width(shown) <= _TEXT else clip(shown, _TEXT - 1) + style.pick("…", "~")
