"""Write traces as one HTML file, with ``cutaway.trace.web``, and provide a page's data.

Knows guides as data, the meaning of every figure, and the catalogue. The served page and the file
contain the catalogue as JSON, so that no script names a stage. Does not know how runs are made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_int
from cutaway.engine.canvas import SETTING_WORDS
from cutaway.errors import InputError
from cutaway.sampling import PARAMS, PRESETS, STAGES, Param, StageSpec
from cutaway.trace.check import READABLE, RENAMES, VERSION
from cutaway.trace.figures import phrases
from cutaway.trace.html import MAX_OPACITY, ORANGE
from cutaway.trace.read import Trace
from cutaway.trace.record import Json
from cutaway.trace.steps import pass_to_json, step_to_json
from cutaway.trace.web import BundledRun, viewer
from cutaway.trace.write import line

# -- guides ------------------------------------------------------------------------------------
# A guide is a question, with short sentences that open places in recorded runs.


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run on a page. If an earlier run of the page is its parent, the page shows it as a fork.

    name   its name on the page
    looks  step -> file of ``cutaway.features.inside.summary``
    """

    trace: Trace
    name: str
    looks: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """A sentence of a guide, and the place that it opens.

    run    number of the run on the page, from 1
    shows  the selection in the run, as in the page's address: step, panel, candidate, pass, other
           (the run to compare with), inside (by, map, head, part)
    """

    text: str
    run: int
    shows: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Guide:
    """A lesson next to the runs of a page.

    links    label → address, shown below the guide
    drawing  HTML, which the page shows above the runs as it is; "": none
    """

    title: str
    question: str
    points: tuple[Point, ...]
    answer: str
    links: Mapping[str, str] = field(default_factory=dict)
    drawing: str = ""

    def to_json(self) -> Json:
        """Return the guide as the page's JSON."""
        return {
            "title": self.title,
            "question": self.question,
            "points": [{"text": p.text, "shows": {**p.shows, "run": p.run}} for p in self.points],
            "answer": self.answer,
            "links": [*self.links.items()],
            "drawing": self.drawing,
        }


# -- the file ----------------------------------------------------------------------------------


@plainly
def to_html(trace: Trace, looks: Mapping[int, bytes] | None = None) -> str:
    """Return an HTML document (UTF-8) that shows the whole run and opens from disk.

    The document fetches nothing.
    looks: step -> file of ``cutaway.features.inside.summary``; other steps need the model
    """
    title = f"cutaway: {trace.head.model}, seed {trace.head.seed}"
    return runs_to_html([ShownRun(trace, title, looks or {})], title)


@plainly
def runs_to_html(
    runs: Sequence[ShownRun], title: str, guide: Guide | None = None, static: str | None = None
) -> str:
    """Return a document of several runs, as ``to_html`` does, with a guide next to them.

    static: where a server has the page's script and style, which the document then fetches
    InputError if ``runs`` is empty, or the guide shows a run that is not in it.
    """
    if not runs:
        raise InputError("runs", ": a page shows one or more")
    for point in guide.points if guide else ():
        check_int(f"the run of {point.text!r:.40}", point.run, 1, len(runs))
    numbers = dict[str, int]()  # the numbers of the runs so far
    bundled = []
    for number, run in enumerate(runs, 1):
        parent = run.trace.head.parent
        of, at = (numbers.get(parent.trace), parent.step) if parent else (None, 0)
        bundled.append(BundledRun(_lines(run.trace), run.name, of, at))
        numbers.setdefault(run.trace.sha256, number)
    looks = {
        f"{number} {step}": look
        for number, run in enumerate(runs, 1)
        for step, look in run.looks.items()
    }
    shown_guide = guide.to_json() if guide else None
    return viewer(bundled, title, catalogue(), looks, guide=shown_guide, static=static)


def _lines(trace: Trace) -> str:
    """Return the lines of a trace's file, in the current version."""
    records = [trace.head.to_json(), *(token.to_json() for token in trace.tokens.values())]
    records += _passes_and_steps(trace)
    records += [trace.end.to_json()] if trace.end else []
    return b"".join(map(line, records)).decode()


def _passes_and_steps(trace: Trace) -> Iterator[Json]:
    """Yield passes and steps in the order of the file: a block's steps follow its last pass."""
    steps, following = list(trace.steps), [*trace.passes[1:], None]
    for canvas_pass, after in zip(trace.passes, following, strict=False):
        yield pass_to_json(canvas_pass)
        if after is None or after.block != canvas_pass.block:
            while steps and steps[0].position < canvas_pass.block[1]:
                yield step_to_json(steps.pop(0))
    yield from map(step_to_json, steps)


# -- the catalogue -----------------------------------------------------------------------------
# The page's data about stages, presets, styles, settings of a canvas and phrases.


def catalogue() -> Json:
    """Return the catalogue, as values for JSON.

    stages    in the table's order: name, letter, label, help, params, filter (whether it only
              removes tokens), rule, switches, at_zero, history, law (see ``StageSpec``); each param
              has name, type, help, range, default, the value at which it is off, a slider's range
    presets   name → names of its stages, in the order of the chain
    styles    groups of settings, each under one name
    usual     names of the settings that most people change
    mask      name of the stage of constraints
    canvas    settings of a canvas that the page asks for: name, type, help, and choices
    heat      the colour of every measure: red, green, blue, and the opacity of the largest value
    phrases   the end of a text and the effect of a constraint in words, with places for figures
    glosses   name of a figure → its meaning
    trace     the format's version, the versions that can be read, and old names → current ones
    """
    return {
        "stages": [_stage(name, spec) for name, spec in STAGES.items()],
        "presets": {name: list(order) for name, order in PRESETS.items()},
        "styles": list(_STYLES),
        "usual": list(_USUAL),
        "mask": "constraint",
        "canvas": [_canvas(name) for name in _CANVAS],
        "heat": {"colour": list(ORANGE), "most": MAX_OPACITY},
        "phrases": phrases(),
        "glosses": dict(GLOSSES),
        "trace": {"version": VERSION, "readable": READABLE, "renames": RENAMES},
    }


def _stage(name: str, spec: StageSpec) -> Json:
    return {
        "name": name, "letter": spec.letter, "label": spec.label, "help": spec.help,
        "filter": spec.filter, "rule": dict(spec.rule), "switches": list(spec.switches),
        "at_zero": spec.at_zero, "history": spec.history, "law": spec.law,
        "params": [_param(p, PARAMS[p]) for p in spec.params if p in PARAMS],
    }  # fmt: skip


def _canvas(name: str) -> Json:
    words = SETTING_WORDS[name]
    return {
        "name": name, "type": words.type.__name__, "choices": list(words.choices),
        "help": words.help.partition(": ")[0].capitalize() + ".",
    }  # fmt: skip


_CANVAS = ("rule", "steps", "block", "threshold", "noise")


def _param(name: str, param: Param) -> Json:
    low, high, step = param.slider
    return {
        "name": name, "type": param.type.__name__, "min": 0 if param.zero else param.low,
        "max": param.high, "default": param.default, "off": param.off,
        "low": low, "high": high, "step": step,
        "help": param.help[:1].upper() + param.help[1:] + ".",
    }  # fmt: skip


_USUAL = ("temperature", "top_p", "top_k")

_STYLES: tuple[Json, ...] = (
    {"name": "greedy", "settings": {"temperature": 0, "top_p": 1},
     "help": "Always the likeliest token: the same text every time, soon the same words again."},
    {"name": "careful", "settings": {"temperature": 0.3, "top_p": 0.8},
     "help": "Close to the likeliest: for facts and code."},
    {"name": "balanced", "settings": {"temperature": 0.7, "top_p": 0.9},
     "help": "Sharper than the model, without its long tail: for most answers."},
    {"name": "pure", "settings": {"temperature": 1, "top_p": 1},
     "help": "The model's own probabilities, nothing removed: what it has learnt, tail and all."},
    {"name": "wild", "settings": {"temperature": 1.4, "top_p": 0.98},
     "help": "Flatter than the model: surprising words, and before long no sense."},
)  # fmt: skip


# -- the meaning of each figure of a step ------------------------------------------------------
# Each figure's label → a sentence.

GLOSSES = MappingProxyType({
    # The text and the model.
    "position": "index of the token in the text, counted from 0, the prompt included",
    "KV cache": (
        "memory for the keys and values of earlier tokens, kept so that attention can read them "
        "without computing them again"
    ),
    "token id": "number of the token in the vocabulary, and of its row in the embedding matrix",
    "logit": "the model's score of a token; the softmax of all logits gives the probabilities",
    "entropy": (
        "uncertainty of the model's prediction in bits: 0 is certain, each bit more doubles the "
        "number of equally likely choices"
    ),
    # The sampler.
    "delta": "what bias and penalties added to the logit",
    "luck": (
        "random number of this token (Gumbel noise); seed, position and token determine it, so "
        "the same seed gives the same text"
    ),
    "score": "log of the probability after the chain, plus luck; the highest score is drawn",
    "runner-up": "the token with the second-highest score",
    # The token.
    "probability": "of the token, in the model's own prediction, before the sampling chain",
    "after the chain": "probability of the token after the sampling chain, among those left",
    "surprise": "−log2 of the probability, in bits: 1 bit is one half, 10 bits about 1 in 1000",
    "rank": "place of the token among all tokens by logit; 1 is the likeliest",
    "drawn": "the token with the highest score",
    "greedy": "temperature 0: the likeliest token is taken, without luck",
    "forced": "the token was given in advance, not drawn",
    "grammar": "the only token that the grammar allowed here",
    "thinking budget": "a token of the mark that ends the thought, whose budget was spent",
    "draft": "drawn as usual; a faster model or an earlier passage had proposed the same token",
    "end": "probability of the end token, before the sampling chain",
    # The computation.
    "schedule": "milliseconds in which the engine chose the rows to compute",
    "run": "milliseconds in which the model computed the logits",
    "drafting": "milliseconds in which draft tokens were proposed",
    "sample": "milliseconds in which the sampling chain and the draw ran",
    "row hash": "hash of all logits of this step; a replay must have the same one",
    "fingerprint": "hash of all logits up to this step; equal texts on other machines have it too",
})  # fmt: skip
