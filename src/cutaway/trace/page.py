"""A trace as one HTML file that needs nothing else: no scripts, no fonts, no network.

Knows what is shown where. Refuses to know how markup is made safe (``html.py``) and how
figures are come by (``views.py``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cutaway.progress import megabytes
from cutaway.trace.endings import UNKNOWN, moment_sentence, outcome_phrase, why
from cutaway.trace.figures import (
    bits,
    chain_label,
    height,
    percent,
    probability,
    stage_label,
    stage_letter,
)
from cutaway.trace.html import MOST_BITS, Chip, Markup, colour, legend, strip, style, tag
from cutaway.trace.read import Trace
from cutaway.trace.views import CandidateView, StepView, step_view

_ROW = 60  # height of a timeline
_COLUMN = 8  # width of a step in it
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def to_html(trace: Trace) -> str:
    """A document that shows the whole run and opens from disk, as UTF-8."""
    title = f"cutaway: {trace.head.model}, seed {trace.head.seed}"
    policy = Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">')
    small = Markup('<meta name="viewport" content="width=device-width">')
    head = tag("head", Markup('<meta charset="utf-8">'), policy, small, tag("title", title), _STYLE)
    body = tag("body", *_body(trace), class_="cutaway")
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def snippet(trace: Trace) -> str:
    """The text by surprise, for a notebook."""
    chips = strip(_chips(trace, link=False))
    return tag("div", style(), _facts(trace), chips, legend(), class_="cutaway")


def _body(trace: Trace) -> Iterator[Markup]:
    yield tag("h1", trace.head.model)
    yield _facts(trace)
    yield strip((*_prompt(trace), *_chips(trace, link=True)))
    yield legend()
    if not trace.steps:
        yield tag("p", "No step is on record.")
        return
    yield tag("h2", "Timelines")
    yield _timelines(trace)
    yield tag("h2", "Why it ended")
    yield from _why(trace)
    yield tag("h2", "Steps")
    yield from (_step(step_view(trace, step)) for step in trace.steps)


def _facts(trace: Trace) -> Markup:
    head = trace.head
    ended = trace.end.reason if trace.end else "cut short, or still going on"
    by, count = f"{head.backend} {head.tier}", f"{len(trace.steps)} steps"
    parts = [f"seed {head.seed}", chain_label(head.chain), by, count, ended]
    return tag("p", " · ".join(parts), class_="legend")


# -- the text ------------------------------------------------------------------------------------


def _prompt(trace: Trace) -> Iterator[Chip]:
    for token_id in trace.head.prompt_token_ids:
        yield Chip(trace.name_of(token_id), None, "prompt")


def _chips(trace: Trace, *, link: bool) -> Iterator[Chip]:
    for step in trace.steps:
        title = (
            f"step {step.index}: {percent(probability(step.logprob))}, "
            f"{bits(step.logprob):.2f} bits, rank {step.rank}, {step.source}"
        )
        href = _anchor(step.index) if link else None
        yield Chip(trace.name_of(step.token_id), bits(step.logprob), title, href)


def _anchor(index: int) -> str:
    return f"#step-{index}"


# -- timelines -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bar:
    """Its height from 0 to 1, what it says, and a letter that stands above it."""

    share: float
    fill: str
    said: str
    letter: str = ""


def _timelines(trace: Trace) -> Markup:
    views, (kinds, key) = [step_view(trace, step) for step in trace.steps], _kinds(trace)
    most = max(MOST_BITS, *(view.entropy for view in views))
    rows = (
        ("Surprise of each token, 0 to 8 bits", _surprises(views)),
        (f"Entropy before the chain, 0 to {most:.1f} bits", _entropies(views, most)),
        ("Probability of the end token: 0.01% and less, 0.1%, 1%, 10%, 100%", _ends(views, kinds)),
    )
    return tag("div", *(_timeline(views, *row) for row in rows), key, class_="timelines")


def _surprises(views: list[StepView]) -> Iterator[_Bar]:
    for view in views:
        share = min(view.bits / MOST_BITS, 1)
        yield _Bar(share, colour(share), f"{view.bits:.2f} bits")


def _entropies(views: list[StepView], most: float) -> Iterator[_Bar]:
    for view in views:
        yield _Bar(view.entropy / most, _GREY, f"{view.entropy:.2f} bits")


def _ends(views: list[StepView], kinds: dict[str, tuple[str, str]]) -> Iterator[_Bar]:
    for view in views:
        if view.end is None:
            yield _Bar(0.0, _GREY, "no end token on record")
            continue
        fill, letter = kinds[view.end.outcome]
        said = f"{percent(view.end.probability)}, {outcome_phrase(view.end.outcome)}"
        share = height(view.end.probability)
        yield _Bar(share, fill, said, letter if share else "")


def _kinds(trace: Trace) -> tuple[dict[str, tuple[str, str]], Markup]:
    """Outcome -> its colour, and the letter that tells it without; and the key to both."""
    letters = _LETTERS | {stage_label(s): stage_letter(s) for s in trace.head.chain}
    found = {
        outcome: (_HUES[i % len(_HUES)], letters[outcome])
        for i, outcome in enumerate(why(trace).outcomes)
    }
    marks = (
        tag("span", tag("b", letter, style=f"background:{hue}"), f" {outcome_phrase(outcome)}")
        for outcome, (hue, letter) in found.items()
    )
    return found, tag("p", "The end token: ", *marks, class_="legend key")


def _timeline(views: list[StepView], label: str, bars: Iterable[_Bar]) -> Markup:
    drawn = [_drawn(view, bar) for view, bar in zip(views, bars, strict=True)]
    wide = _COLUMN * len(views)
    svg = tag(
        "svg", *drawn, viewBox=f"0 0 {wide} {_ROW}", width=wide, height=_ROW, role="img",
        aria_label=label,
    )  # fmt: skip
    return tag("figure", tag("figcaption", label), tag("div", svg))


def _drawn(view: StepView, bar: _Bar) -> Markup:
    high, left = max(round(bar.share * (_ROW - 10), 1), 1), view.index * _COLUMN
    top = round(_ROW - high, 1)
    return tag(
        "a",
        tag("title", f"step {view.index}, '{view.token}': {bar.said}"),
        tag("rect", x=left, y=0, width=_COLUMN, height=_ROW, fill="transparent"),
        tag("rect", x=left + 1, y=top, width=_COLUMN - 2, height=high, fill=bar.fill),
        tag("text", bar.letter, x=left + _COLUMN / 2, y=top - 2) if bar.letter else "",
        href=_anchor(view.index),
    )


# -- why it ended, and the steps -----------------------------------------------------------------


def _why(trace: Trace) -> Iterator[Markup]:
    answer = why(trace)
    yield tag("p", answer.sentence)
    if answer.closest:
        yield tag("p", "The text came closest to ending before at")
        yield tag("ul", *(tag("li", moment_sentence(trace, m)) for m in answer.closest))


def _step(view: StepView) -> Markup:
    named = tag("span", tag("b", view.token, class_="t"), class_="name")
    figures = f" {percent(view.probability)} → {percent(view.final_probability)} · "
    figures += f"{view.bits:.2f} bits · rank {view.rank} · {view.source}"
    rest = (
        f"position {view.position} · entropy {view.entropy:.2f} bits · {view.kv_tokens} tokens in "
        f"the KV cache, {megabytes(view.kv_bytes)} · {sum(view.ms.values()):.1f} ms"
    )
    # The id stands inside, so that a link to it opens the step.
    inside = tag("div", tag("p", rest), _candidates(view), _stages(view), id=f"step-{view.index}")
    return tag("details", tag("summary", f"{view.index} ", named, figures), inside)


def _candidates(view: StepView) -> Markup:
    names = ("", "token", "model", "", "final", "logit", "changed", "luck", "rank", "removed by")
    rows = (_candidate(candidate) for candidate in view.candidates)
    return _table(names, rows)


def _candidate(c: CandidateView) -> Markup:
    mark = "●" if c.chosen else c.letter or ("○" if c.drawn else "")
    cells = (
        mark, tag("span", c.token, class_="t name"), percent(c.probability), _share(c.probability),
        percent(c.final_probability), f"{c.logit:.2f}", f"{c.delta:+.2f}" if c.delta else "",
        "" if c.luck is None else f"{c.luck:+.2f}", str(c.rank), c.removed_by or "",
    )  # fmt: skip
    look = "chosen" if c.chosen else "removed" if c.removed_by else None
    return tag("tr", *(tag("td", cell) for cell in cells), class_=look)


def _share(share: float) -> Markup:
    return tag("span", class_="share", style=f"width:{100 * share:.1f}px")


def _stages(view: StepView) -> Markup:
    rows = (
        tag(
            "tr",
            *(tag("td", cell) for cell in (s.letter, s.label, str(s.survivors))),
            tag("td", percent(s.removed_mass)),
            tag("td", *(tag("span", name, class_="t victim") for name in s.victims)),
        )
        for s in view.stages
    )
    return _table(("", "stage", "left", "removed", "the likeliest of those"), rows)


def _table(names: Iterable[str], rows: Iterable[Markup]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", name) for name in names)))
    return tag("table", head, tag("tbody", *rows))


_GREY = "#8a8a8a"
_HUES = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#f0e442", "#d55e00")
"""Okabe and Ito's colours."""
_LETTERS = {"drawn": "●", "lost": "○", "forced": "→", UNKNOWN: "?"}

_STYLE = style("""
body{max-width:62rem;margin:2rem auto;padding:0 1rem;font:15px/1.5 sans-serif;color:#222;
 background:#fff}
h1{font-size:1.4rem;margin:0} h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
figure{margin:.6rem 0} figcaption{font-size:12px} figure div{overflow-x:auto}
svg text{font:8px sans-serif;text-anchor:middle} svg a:hover rect{stroke:#0072b2}
summary{cursor:pointer;font-variant-numeric:tabular-nums} details:has(:target){background:#eef4fa}
.name,.victim{font-family:ui-monospace,Menlo,Consolas,monospace;background:#f1f1f1;
 padding:0 .2em}
.victim{margin-right:.4em}
table{border-collapse:collapse;font-size:13px;margin:.4rem 0 1rem}
th{text-align:left;font-weight:normal;color:#555} td,th{padding:.1rem .5rem}
td{font-variant-numeric:tabular-nums}
.chosen{font-weight:bold} .removed{color:#666}
.key span{margin-right:1.5em} .key b{padding:0 .3em} details>div{scroll-margin-top:3em}
.share{display:inline-block;height:.7em;min-width:1px;background:#0072b2}
""")
